"""The calls of AReaL, in its order.

inclusionAI/AReaL, main of 2025-11, areal/utils/offload.py: get_tms_env_vars takes the name without
a CUDA version and returns the environment of the engine's process; is_tms_enabled asks
TMS_INIT_ENABLE. areal/engine/fsdp_engine.py sets hook_mode "preload", offloads with pause() after
emptying the cache, onloads with resume(), and makes memory that is not to be paused within
disable().
"""

from __future__ import annotations

import os
import subprocess
import sys


def environment() -> dict[str, str]:
    import torch_memory_saver

    path = os.path.join(
        os.path.dirname(os.path.dirname(torch_memory_saver.__file__)),
        "torch_memory_saver_hook_mode_preload.abi3.so",
    )
    if not os.path.exists(path):  # in a source checkout
        from torch_memory_saver.utils import get_binary_path_from_package

        path = str(get_binary_path_from_package("torch_memory_saver_hook_mode_preload"))
    return {"LD_PRELOAD": path, "TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}


def engine() -> None:
    import torch
    from common import SIZE, SLACK, free, full, holds, initially_free

    from torch_memory_saver import torch_memory_saver

    assert os.environ.get("TMS_INIT_ENABLE", "0") == "1"
    torch_memory_saver.hook_mode = "preload"
    torch.cuda.set_device(0)
    initial = initially_free()
    model, optimizer = full(1), full(2)
    for step in range(3):
        model.add_(1)
        torch.cuda.empty_cache()
        torch_memory_saver.pause()
        assert initial - free() <= SLACK
        with torch_memory_saver.disable():
            sent = full(5)
            assert initial - free() >= SIZE - SLACK
            assert holds(sent, 5)
            del sent
        torch_memory_saver.resume()
        assert holds(model, 2 + step)
        assert holds(optimizer, 2)
    print("AReaL done")


if __name__ == "__main__":
    if sys.argv[1:] == ["engine"]:
        engine()
    else:
        command = [sys.executable, __file__, "engine"]
        sys.exit(subprocess.run(command, env={**os.environ, **environment()}).returncode)
