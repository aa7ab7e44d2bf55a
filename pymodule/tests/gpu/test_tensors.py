"""Tensors of regions: addresses stay, memory goes and comes, contents follow the settings."""

from __future__ import annotations

import threading

import pytest
import tags
from device import MiB, free_memory, holds, torch_on_gpu
from threads import in_threads

import tms

torch = torch_on_gpu()

SIZE = 512 * MiB
SLACK = 32 * MiB  # what else may come and go on the device during the test


def random(size: int = SIZE) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")


@pytest.mark.parametrize("backup", ["host", None])
def test_pause_and_resume(backup: tms.Backup, tag: str) -> None:
    expected = random()
    with tms.region(tag, backup=backup):
        tensor = expected.clone()
    for each in (tensor, expected):  # loads the kernels, before memory is measured
        each += 1
    assert torch.equal(tensor, expected)
    address, before = tensor.data_ptr(), free_memory()
    for _ in range(3):
        tms.pause(tag)
        assert free_memory() >= before + SIZE - SLACK
        tms.resume(tag)
        assert abs(free_memory() - before) <= SLACK
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, expected) == (backup == "host")
        tensor.copy_(expected)
        for each in (tensor, expected):
            each += 1
        assert torch.equal(tensor, expected)


def test_nested(tag: str) -> None:
    """The innermost region gets the tensor: before, within and after another one."""
    with tms.region(f"{tag} outer", backup="host"):
        outer = [random()]
        with tms.region(f"{tag} inner", backup="host"):
            inner = random()
        outer.append(random())
    expected = [tensor.clone() for tensor in outer]
    expected_inner = inner.clone()
    before = free_memory()
    tms.pause(f"{tag} inner")
    assert abs(free_memory() - before - SIZE) <= SLACK
    assert all(map(torch.equal, outer, expected))
    tms.resume(f"{tag} inner")
    tms.pause(f"{tag} outer")
    assert abs(free_memory() - before - 2 * SIZE) <= SLACK
    assert torch.equal(inner, expected_inner)
    tms.resume(f"{tag} outer")
    assert all(map(torch.equal, outer, expected))


def test_small_tensors_do_not_mix(tag: str) -> None:
    """PyTorch packs small tensors into shared segments, but never ordinary with pausable ones."""

    def some() -> list[torch.Tensor]:
        return [torch.full((n,), n, dtype=torch.int32, device="cuda") for n in range(1, 400)]

    ordinary = some()
    with tms.region(tag, backup="host"):
        pausable = some()
        with tms.disable():
            ordinary += some()
        pausable += some()
    ordinary += some()
    del ordinary[::3], pausable[::3]
    ordinary += some()
    with tms.region(tag, backup="host"):
        pausable += some()
    with tms.paused(tag):
        assert all(int(tensor[-1]) == len(tensor) for tensor in ordinary)
    assert all(int(tensor[-1]) == len(tensor) for tensor in pausable)


def test_caches_do_not_mix(tag: str) -> None:
    """A freed tensor's memory is reused only for its own kind."""
    ordinary = random()
    address = ordinary.data_ptr()
    del ordinary
    with tms.region(tag, backup="host"):
        pausable = random()
    assert pausable.data_ptr() != address
    address = pausable.data_ptr()
    del pausable
    ordinary = random()
    assert ordinary.data_ptr() != address
    with tms.region(tag, backup="host"):
        again = random()
    assert again.data_ptr() == address
    expected = ordinary.clone()
    with tms.paused(tag):
        assert torch.equal(ordinary, expected)


def test_made_while_paused(tag: str) -> None:
    first_expected, second_expected = random(), random()
    with tms.region(tag, backup="host"):
        first = first_expected.clone()
    tms.pause(tag)
    with tms.region(tag, backup="host"):
        second = second_expected.clone()
    assert torch.equal(second, second_expected)
    tms.resume(tag)
    assert torch.equal(first, first_expected)
    assert torch.equal(second, second_expected)


def test_cache_of_a_region(tag: str) -> None:
    """A region's freed tensor stays cached, out of empty_cache's reach; a pause includes it."""
    with tms.region(tag):
        kept, freed = random(), random()
    held = free_memory()
    del freed
    torch.cuda.empty_cache()
    assert abs(free_memory() - held) <= SLACK
    tms.pause(tag)
    assert free_memory() >= held + 2 * SIZE - SLACK
    torch.cuda.empty_cache()
    tms.resume(tag)
    kept.fill_(5)
    with tms.region(tag):
        reused = torch.full((SIZE,), 6, dtype=torch.uint8, device="cuda")
    assert abs(free_memory() - held) <= SLACK
    assert int(kept[-1]) == 5
    assert int(reused[-1]) == 6


def test_empty_cache(tag: str) -> None:
    """Ours reaches the cache of a region, active or paused, and leaves its tensors alone."""
    with tms.region(tag, backup="host"):
        kept, freed = random(), random()
        small = torch.full((1000,), 3, dtype=torch.int32, device="cuda")
    expected = kept.clone()
    held = free_memory()
    del freed
    tms.empty_cache()
    assert free_memory() >= held + SIZE - SLACK
    with tms.region(tag, backup="host"):
        more, freed = random(), random()
    more_expected = more.clone()
    held = free_memory()
    tms.pause(tag)
    del freed
    tms.empty_cache()
    tms.resume(tag)
    assert free_memory() >= held + SIZE - SLACK
    assert torch.equal(kept, expected)
    assert torch.equal(more, more_expected)
    assert holds(small, 3)
    del kept, more, small
    torch.cuda.empty_cache()  # retired pools are in PyTorch's ordinary cache
    assert tags.total("live_bytes", tag) == 0


def test_ordinary_cache_is_emptied(tag: str) -> None:
    with tms.region(tag):
        pausable = random()
    ordinary = random()
    held = free_memory()
    del ordinary
    with tms.paused(tag):
        torch.cuda.empty_cache()
    assert free_memory() >= held + SIZE - SLACK
    pausable.zero_()


def test_threads_in_the_same_region(tag: str) -> None:
    made: dict[int, torch.Tensor] = {}
    both_inside = threading.Barrier(3, timeout=60)

    def work(number: int) -> None:
        with tms.region(tag, backup="host"):
            both_inside.wait()
            made[number] = torch.full((SIZE,), number, dtype=torch.uint8, device="cuda")
            both_inside.wait()

    def ordinary() -> None:
        both_inside.wait()
        made[3] = torch.full((SIZE,), 3, dtype=torch.uint8, device="cuda")
        both_inside.wait()

    in_threads(lambda: work(1), lambda: work(2), ordinary)
    before = free_memory()
    with tms.paused(tag):
        assert abs(free_memory() - before - 2 * SIZE) <= SLACK
        assert holds(made[3], 3)
    for number in (1, 2):
        assert holds(made[number], number)


@pytest.mark.several_gpus
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_device_changed_inside(tag: str) -> None:
    for _ in range(2):
        with tms.region(tag, backup="host"):
            first = random()
            with torch.cuda.device(1):
                second = random()
    assert second.device.index == 1
    expected = first.clone(), second.clone()
    with torch.cuda.device(1):
        ordinary = random()
        ordinary_expected = ordinary.clone()
    before = free_memory(0), free_memory(1)
    with tms.paused(tag):
        assert free_memory(0) >= before[0] + SIZE
        assert free_memory(1) >= before[1] + SIZE
        assert torch.equal(ordinary, ordinary_expected)
    assert torch.equal(first, expected[0])
    assert torch.equal(second, expected[1])
