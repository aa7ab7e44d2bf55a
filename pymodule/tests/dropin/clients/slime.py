"""The calls of slime (and miles, its fork), in their order.

THUDM/slime 03b11f4, slime/ray/actor_group.py: the library is found beside the package by name and
put into the actor's environment with the INIT variables; newer miles look into the file for the
name of the disk backup's variable. slime/backends/megatron_utils: __init__.py patches DeepEP's
Buffer, which turns pausing off around it through the C functions; actor.py sets the margin, sleeps
and wakes up, and updates weights within disable(); update_weight/common.py reads host copies.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def group() -> int:
    """The parent, which starts an actor."""
    import torch_memory_saver

    for name in (
        "torch_memory_saver_hook_mode_preload_cu12.abi3.so",
        "torch_memory_saver_hook_mode_preload.abi3.so",
    ):
        directory = os.path.dirname(os.path.dirname(torch_memory_saver.__file__))
        path = os.path.join(directory, name)
        if os.path.exists(path):
            break
    else:
        from torch_memory_saver.utils import get_binary_path_from_package

        path = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    assert b"TMS_INIT_ENABLE_DISK_BACKUP" in Path(path).read_bytes()
    environment = {
        **os.environ,
        "LD_PRELOAD": path,
        "TMS_INIT_ENABLE": "1",
        "TMS_INIT_ENABLE_CPU_BACKUP": "1",
    }
    return subprocess.run(
        [sys.executable, __file__, "actor"], env=environment, check=False
    ).returncode


def actor() -> None:
    import torch
    from common import SIZE, SLACK, free, full, holds, initially_free

    from torch_memory_saver import torch_memory_saver

    class Buffer:  # stands in for DeepEP's
        def __init__(self) -> None:
            self.memory = full(9)

    old_init = Buffer.__init__

    def new_init(self: Buffer) -> None:
        if torch_memory_saver._impl is not None:
            torch_memory_saver._impl._binary_wrapper.cdll.tms_set_interesting_region(False)
        old_init(self)
        torch.cuda.synchronize()
        if torch_memory_saver._impl is not None:
            torch_memory_saver._impl._binary_wrapper.cdll.tms_set_interesting_region(True)

    Buffer.__init__ = new_init  # type: ignore[method-assign]

    torch_memory_saver.memory_margin_bytes = 1 << 20
    cdll = torch_memory_saver._impl._binary_wrapper.cdll
    assert cdll.tms_get_interesting_region()
    assert cdll.tms_get_enable_cpu_backup()
    assert cdll.tms_get_current_tag() == b"default"

    initial = initially_free()
    model = full(1)
    with torch_memory_saver.region(tag="gradients", enable_cpu_backup=False):
        assert cdll.tms_get_interesting_region()
        assert not cdll.tms_get_enable_cpu_backup()
        assert cdll.tms_get_current_tag() == b"gradients"
        gradients = full(2)
        with torch_memory_saver.region(tag="inner", enable_cpu_backup=True):
            inner = full(3)
    assert cdll.tms_get_interesting_region()
    assert cdll.tms_get_enable_cpu_backup()
    assert cdll.tms_get_current_tag() == b"default"
    assert torch_memory_saver.get_cpu_backup(model, zero_copy=True) is None

    for _ in range(2):
        torch_memory_saver.pause()  # sleep
        assert initial - free() <= SLACK
        copy = torch_memory_saver.get_cpu_backup(model, zero_copy=True)
        assert holds(copy, 1)
        assert holds(torch_memory_saver.get_cpu_backup(inner), 3)
        assert torch_memory_saver.get_cpu_backup(gradients) is None
        with torch_memory_saver.disable():  # update_weights while asleep
            assert not cdll.tms_get_interesting_region()
            bucket = full(0)
            bucket.copy_(copy)
            assert holds(bucket, 1)
            assert initial - free() >= SIZE - SLACK
            torch_memory_saver.pause()  # ordinary memory stays
            assert holds(bucket, 1)
            del bucket
        assert initial - free() <= SLACK
        del copy
        torch_memory_saver.resume()  # wake_up
        assert torch_memory_saver.get_cpu_backup(model, zero_copy=True) is None
        assert holds(model, 1)
        assert holds(inner, 3)
        gradients.fill_(2)

    buffer = Buffer()
    assert cdll.tms_get_interesting_region()
    assert holds(buffer.memory, 9)

    torch_memory_saver.retain_cpu_backup = True
    assert torch_memory_saver.retain_cpu_backup is True
    torch_memory_saver.pause()
    torch_memory_saver.resume()
    model.add_(1)
    assert holds(torch_memory_saver.get_cpu_backup(model, zero_copy=True), 1)
    print("slime done")


if __name__ == "__main__":
    if sys.argv[1:] == ["actor"]:
        actor()
    else:
        sys.exit(group())
