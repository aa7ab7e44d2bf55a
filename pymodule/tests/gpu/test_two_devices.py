"""Two GPUs in one process, and in two: copies and kernels across, contents kept across, NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest
from device import MiB, holds, torch_on_gpu

import tms

torch = torch_on_gpu()

if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

SIZE = 64 * MiB


def full(value: int, device: int) -> Any:
    return torch.full((SIZE,), value, dtype=torch.uint8, device=f"cuda:{device}")


@pytest.fixture
def pair(tag: str) -> Any:
    """A region's tensors on both devices."""
    with tms.region(tag, backup="host"):
        return full(1, 0), full(2, 1)


def test_copies_across(pair: Any, tag: str) -> None:
    """With either device current, before and after a pause; PyTorch enables peer access."""
    for _ in range(2):
        for current in range(2):
            with torch.cuda.device(current):
                one, other = pair
                assert holds(one.to("cuda:1"), 1) and holds(other.to("cuda:0"), 2)
                other.copy_(one)
                one.fill_(3)
                one.copy_(other)
                other.fill_(2)
                assert holds(one, 1) and holds(other, 2)
                assert (one.cpu() == 1).all() and (other.cpu() == 2).all()
        tms.pause(tag)
        tms.resume(tag)


def test_plain_copies_with_the_other_device_current(pair: Any) -> None:
    """cudaMemcpy, as a C program calls it: it needs no peer access to have been enabled."""
    import ctypes

    runtime = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(16)
    for current in range(2):
        with torch.cuda.device(current):
            for tensor, value in zip(pair, (1, 2)):
                code = runtime.cudaMemcpy(buffer, ctypes.c_void_p(tensor.data_ptr()), 16, 2)
                assert code == 0
                assert buffer.raw == bytes([value]) * 16


@pytest.mark.parametrize("backup", ["peer", "peer:1"])
def test_contents_wait_in_the_other_device(backup: str, tag: str) -> None:
    def free(device: int) -> int:
        return int(torch.cuda.mem_get_info(device)[0])

    with tms.region(tag, backup=backup):
        tensors = [
            torch.randint(255, (SIZE,), dtype=torch.uint8, device="cuda:0") for _ in range(8)
        ]
    torch.cuda.synchronize(0)
    copies = [tensor.cpu() for tensor in tensors]
    before = free(0), free(1)
    for _ in range(3):
        tms.pause(tag)
        assert free(0) >= before[0] + 8 * SIZE
        assert free(1) <= before[1] - 8 * SIZE
        tms.resume(tag)
        for tensor, copy in zip(tensors, copies):
            assert torch.equal(tensor.cpu(), copy)


WORKER = """
    import os, sys
    import torch, torch.distributed as dist
    import tms
    rank = int(sys.argv[1])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    with tms.region("t", backup="host"):
        x = torch.full((32 << 20,), float(rank + 1), device="cuda")
        y = torch.zeros((32 << 20,), device="cuda")
    for cycle in range(3):
        dist.all_reduce(x)
        assert (x == 3 * 2**cycle).all(), x[:3]
        dist.all_gather_into_tensor(y, x[: 16 << 20])
        assert (y == 3 * 2**cycle).all()
        torch.cuda.synchronize()
        tms.pause()
        tms.resume()
        assert (x == 3 * 2**cycle).all()
    dist.destroy_process_group()
    print("reduced", rank)
"""


def test_all_reduce() -> None:
    """NCCL on region tensors, before and after a pause and resume, in two processes."""
    environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29531")
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(WORKER), str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, worker in enumerate(workers):
        out, _ = worker.communicate(timeout=120)
        assert worker.returncode == 0, out
        assert f"reduced {rank}" in out
