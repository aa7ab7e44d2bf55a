"""Too little device memory: PyTorch's error where PyTorch asks, ours where we do."""

from __future__ import annotations

import pytest
from device import MiB, free_memory, full, holds, torch_on_gpu

import tms

torch = torch_on_gpu()

SIZE = 1024 * MiB


def test_in_a_region(tag: str) -> None:
    """PyTorch raises its own error; the region goes on, and works once there is memory."""
    ordinary = full(1, free_memory() - SIZE)
    ooms = torch.cuda.memory_stats()["num_ooms"]
    with tms.region(tag, backup="host"):
        small = full(2, SIZE // 4)
        with pytest.raises(torch.OutOfMemoryError):
            full(1, 2 * SIZE)
        also_small = full(3, SIZE // 4)
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    del ordinary
    torch.cuda.empty_cache()
    with tms.region(tag, backup="host"):
        large = full(4, 2 * SIZE)
    with tms.paused(tag):
        pass
    for tensor, value in ((small, 2), (also_small, 3), (large, 4)):
        assert holds(tensor, value)


def test_outside_a_region(tag: str) -> None:
    """PyTorch's retry releases its cache; a pause makes room for what still does not fit."""
    with tms.region(tag):
        pausable = full(1, free_memory() // 2)
    cached = [full(1, SIZE) for _ in range(free_memory() // SIZE)]
    del cached  # in pieces, none of which is large enough
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    ordinary = full(1, 2 * SIZE)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries + 1
    del ordinary
    torch.cuda.empty_cache()
    size = free_memory() + SIZE
    with pytest.raises(torch.OutOfMemoryError):
        full(1, size)
    with tms.paused(tag):
        ordinary = full(1, size)
        del ordinary
    pausable.fill_(1)


def test_resume(tag: str) -> None:
    with tms.region(tag, backup="host"):
        tensor = full(5, 4 * SIZE)
    address = tensor.data_ptr()
    tms.pause(tag)
    ordinary = full(1, free_memory() - SIZE)
    with pytest.raises(tms.OutOfMemoryError) as caught:
        tms.resume(tag)
    assert caught.value.code == 2
    assert holds(ordinary[:: 4 * MiB], 1)
    del ordinary  # PyTorch now caches it, and resume makes PyTorch release it
    tms.resume(tag)
    assert tensor.data_ptr() == address
    assert holds(tensor, 5)


def test_paused_segments_do_not_count_as_used(tag: str) -> None:
    """Several paused tags may together be larger than the device."""
    size = int(free_memory() * 0.7)
    tensors = []
    for number in range(3):
        with tms.region(f"{tag} {number}"):
            tensors.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        tensors[-1][-1] = number
        tms.pause(f"{tag} {number}")
    assert sum(tensor.nbytes for tensor in tensors) > torch.cuda.mem_get_info()[1]
    for number, tensor in enumerate(tensors):
        tms.resume(f"{tag} {number}")
        tensor[-1] = number
        assert int(tensor[-1]) == number
        tms.pause(f"{tag} {number}")
    del tensors, tensor
    tms.resume()  # finds too little memory, then that none is needed
    assert torch.cuda.mem_get_info()[0] > size
