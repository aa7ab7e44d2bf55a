"""torch_memory_saver's interface on PyTorch and a GPU: its clients' calls; hook_mode "torch"."""

from __future__ import annotations

import os
import textwrap

import pytest
from device import MiB, free_memory, full, holds, run, torch_on_gpu
from simulator import DROPIN, PYMODULE

import tms
from torch_memory_saver import torch_memory_saver as saver

torch = torch_on_gpu()

SIZE = 256 * MiB
SLACK = 32 * MiB
CLIENTS = PYMODULE / "tests" / "dropin" / "clients"


def said(*arguments: str) -> str:
    """Standard output of Python in a process without a preload."""
    paths = f"{PYMODULE}:{DROPIN}:{CLIENTS}:{os.environ.get('PYTHONPATH', '')}"
    done = run(*arguments, preloaded=False, PYTHONPATH=paths, CLIENT_SIZE=str(SIZE))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("client", ["sglang", "slime", "areal", "megatron", "nemo_rl"])
def test_client(client: str) -> None:
    """Each one's docstring says what it follows."""
    assert said(str(CLIENTS / f"{client}.py")).endswith(" done\n")


def test_cpu_backup_of_typed_tensors(tag: str) -> None:
    with saver.region(tag, enable_cpu_backup=True):
        tensors = [
            torch.randn((10, 20, 30), device="cuda"),
            torch.randn((5, 7), dtype=torch.bfloat16, device="cuda"),
            torch.arange(1000, device="cuda"),
            torch.tensor(3.5, device="cuda"),
            torch.tensor([True, False], device="cuda"),
        ]
    with pytest.raises(ValueError, match="contiguous"):
        saver.get_cpu_backup(tensors[0].transpose(0, 1))
    with pytest.raises(ValueError, match="CUDA device"):
        saver.get_cpu_backup(torch.ones(1))
    expected = [tensor.cpu() for tensor in tensors]
    assert saver.get_cpu_backup(tensors[0]) is None
    saver.pause(tag)
    for tensor, wanted in zip(tensors, expected):
        for zero_copy in (False, True):
            copy = saver.get_cpu_backup(tensor, zero_copy=zero_copy)
            assert copy.device.type == "cpu"
            assert copy.stride() == tensor.stride()
            assert torch.equal(copy, wanted)
    saver.resume(tag)
    assert all(torch.equal(tensor.cpu(), wanted) for tensor, wanted in zip(tensors, expected))


def test_pools_replaced_and_dropped(tag: str) -> None:
    """As clients repack weights: with a pool of their own in place of the region's."""
    with saver.region(tag, enable_cpu_backup=True):
        weights = full(1, SIZE)
    pools = saver._impl._mem_pools
    key = (tag, True, False, "pinned", torch.cuda.current_device())
    assert pools[key].use_count() == 1
    assert sum(segment["total_size"] for segment in pools[key].snapshot()) >= SIZE
    mine = torch.cuda.MemPool(allocator=saver._impl._hook_util.get_allocator())
    config = saver._impl._with_region_config(tag=tag, enable_cpu_backup=True)
    with torch.cuda.use_mem_pool(mine), config:
        packed = weights.clone()
    before = free_memory()
    pools[key] = mine
    del weights
    assert free_memory() >= before + SIZE - SLACK
    with saver.region(tag, enable_cpu_backup=True):
        more = full(2, SIZE)
    assert sum(segment["total_size"] for segment in mine.snapshot()) >= 2 * SIZE
    with tms.paused(tag):
        assert free_memory() >= before + SIZE - SLACK
    assert holds(packed, 1)
    assert holds(more, 2)
    pools.pop(key)
    del packed, more
    assert free_memory() >= before + 2 * SIZE - SLACK


def test_hook_mode_torch() -> None:
    """Out of memory, frees outside regions, nesting, tms itself."""
    program = """
    import torch, tms
    from common import SIZE, SLACK, free, full, holds, initially_free
    from torch_memory_saver import torch_memory_saver as saver
    saver.hook_mode = "torch"
    initial = initially_free()

    with saver.region("a", enable_cpu_backup=True):
        a = full(1)
        with saver.region("b"):
            b = full(2)
        with saver.disable():
            ordinary = full(3)
        also_a = full(4)
    before = free()
    saver.pause("a")
    assert free() - before >= 2 * SIZE - SLACK
    assert holds(b, 2) and holds(ordinary, 3)
    saver.resume("a")
    assert holds(a, 1) and holds(also_a, 4)

    # NULL when out of memory: PyTorch raises its own error, and all goes on.
    cdll = saver._impl._binary_wrapper.cdll
    assert cdll.tms_torch_malloc(initial * 2, 0, None) is None
    try:
        with saver.region("a"):
            full(5, initial)
        raise AssertionError("too large")
    except torch.OutOfMemoryError:
        pass
    with saver.region("a", enable_cpu_backup=True):
        large = full(6, 3 * SIZE)
    assert holds(large, 6)

    saver.pause("a")
    del a, b, also_a, large
    tms.empty_cache()
    assert initial - free() <= SIZE + SLACK, (initial, free())

    with tms.region("host", backup="host"):
        host = full(8)
    with tms.paused():
        assert initial - free() <= SIZE + SLACK
    assert holds(host, 8)
    try:
        with saver.cuda_graph(torch.cuda.CUDAGraph()):
            raise AssertionError("captured")
    except tms.NotSupportedError:
        pass
    print("done")
    """
    assert said("-c", textwrap.dedent(program)) == "done\n"
