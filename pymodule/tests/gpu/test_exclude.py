"""What stays real in a region: memory made in tms.exclude(), or by a library of TMS_EXCLUDE."""

from __future__ import annotations

import ctypes
import json
from typing import Any

import pytest
from device import MiB, free_memory, output, torch_on_gpu

import tms

torch = torch_on_gpu()

SIZE = 256 * MiB
SLACK = 32 * MiB

cuda: Any = ctypes.CDLL(None)  # cudaMalloc as any program of this process finds it


def random() -> Any:
    return torch.randint(255, (SIZE,), dtype=torch.uint8, device="cuda")


def allocate() -> ctypes.c_void_p:
    """Memory from cudaMalloc itself, without PyTorch."""
    pointer = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(SIZE)) == 0
    return pointer


def live_bytes() -> int:
    return sum(device["live_bytes"] for device in tms.stats()["devices"])


def test_excluded_memory_stays(tag: str) -> None:
    """Its contents can be read at its address during a pause; the figures do not count it."""
    with tms.region(tag, backup="host"):
        pausable = random()
        counted = live_bytes()
        with tms.exclude():
            excluded, direct = random(), allocate()
            with tms.region(f"{tag} inner"):
                in_a_region = random()
        assert live_bytes() == counted
        also_pausable = random()
    assert live_bytes() == counted + SIZE
    tensors = [excluded, in_a_region, pausable, also_pausable]
    addresses, copies = [t.data_ptr() for t in tensors], [t.cpu() for t in tensors]
    assert cuda.cudaMemset(direct, 7, ctypes.c_size_t(SIZE)) == 0
    before = free_memory()
    with tms.paused(tag), tms.paused(f"{tag} inner"):
        assert abs(free_memory() - before - 2 * SIZE) <= SLACK
        assert torch.equal(excluded.cpu(), copies[0])
        assert torch.equal(in_a_region.cpu(), copies[1])
        byte = ctypes.c_uint8()
        last = ctypes.c_void_p((direct.value or 0) + SIZE - 1)
        assert cuda.cudaMemcpy(ctypes.byref(byte), last, ctypes.c_size_t(1), 2) == 0
        assert byte.value == 7
    assert [t.data_ptr() for t in tensors] == addresses
    assert all(torch.equal(tensor.cpu(), copy) for tensor, copy in zip(tensors, copies))
    assert cuda.cudaFree(direct) == 0


@pytest.mark.parametrize("listed", [True, False])
def test_listed_library(listed: bool) -> None:
    """libc10_cuda.so calls cudaMalloc for all of PyTorch's tensors, but not for ctypes."""
    taken, freed = json.loads(
        output(
            """
            import ctypes, json, sys
            import torch, tms

            SIZE, listed = 256 << 20, sys.argv[1] == "True"
            cuda = ctypes.CDLL(None)
            warm = torch.full((SIZE,), 1, dtype=torch.uint8, device="cuda")
            assert (warm == 1).all()
            with tms.region("t"):
                tensor = torch.full((SIZE,), 5, dtype=torch.uint8, device="cuda")
                pointer = ctypes.c_void_p()
                assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(SIZE)) == 0
            address = tensor.data_ptr()
            taken = sum(device["live_bytes"] for device in tms.stats()["devices"])
            torch.cuda.empty_cache()
            before = torch.cuda.mem_get_info()[0]
            tms.pause()
            freed = torch.cuda.mem_get_info()[0] - before
            if listed:
                assert (tensor == 5).all()
            tms.resume()
            assert tensor.data_ptr() == address
            tensor.fill_(6)
            assert (tensor == 6).all()
            assert cuda.cudaFree(pointer) == 0
            print(json.dumps([taken, freed]))
            """,
            str(listed),
            TMS_EXCLUDE="libc10_cuda.so" if listed else "libc10.so",
        )
    )
    assert taken == (SIZE if listed else 2 * SIZE)
    assert abs(freed - taken) <= SLACK
