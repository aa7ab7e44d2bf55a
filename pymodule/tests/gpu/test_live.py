"""Parts of tensors that a pause keeps, where fresh memory is what the driver makes it."""

from __future__ import annotations

import time

import pytest
from device import MiB, holds, torch_on_gpu

import tms

torch = torch_on_gpu()


def host_bytes(tag: str) -> int:
    devices = tms.stats()["devices"]
    return sum(t["host_bytes"] for d in devices for t in d["tags"] if t["tag"] == tag)


@pytest.mark.parametrize("kind", ["host", "sparse"])
def test_live(tag: str, kind: tms.Backup) -> None:
    """Layers with one mask, and a neighbour in their memory that says nothing."""
    with tms.region(tag, backup=kind):
        shape = (64, MiB)  # of blocks of 1 MiB
        layers = [torch.randint(1, 255, shape, dtype=torch.uint8, device="cuda") for _ in range(4)]
        beside = torch.full((3 * MiB,), 7, dtype=torch.uint8, device="cuda")
    before = [layer.clone() for layer in layers]
    mask = torch.zeros(64, dtype=torch.bool)
    mask[[3, 4, 20, 63]] = True
    for _ in range(3):
        tms.live(layers, mask)
        tms.pause(tag)
        assert 16 * MiB <= host_bytes(tag) < 16 * MiB + 40 * MiB  # and what PyTorch only caches
        tms.resume(tag)
        for layer, was in zip(layers, before):
            assert torch.equal(layer[mask], was[mask])
            layer.copy_(was)
        assert holds(beside, 7)
    with tms.paused(tag):
        assert host_bytes(tag) >= 256 * MiB
    for layer, was in zip(layers, before):
        assert torch.equal(layer, was)


def test_sparse(tag: str) -> None:
    """Zeros come back where other tensors have used the memory during the pause."""
    with tms.region(tag, backup="sparse"):
        cache = torch.zeros(1024, MiB, dtype=torch.uint8, device="cuda")
    cache[[5, 100, 101, 1023]] = 9
    before = cache.clone()
    for _ in range(3):
        tms.pause(tag)
        assert host_bytes(tag) == 3 * 2 * MiB  # rows 100 and 101 are one block
        junk = torch.full((1024, MiB), 255, dtype=torch.uint8, device="cuda")
        del junk
        torch.cuda.empty_cache()
        tms.resume(tag)
        assert torch.equal(cache, before)


def test_what_it_saves(tag: str) -> None:
    """5% of 8 GiB are in use. Prints what the pauses take beside those that copy all."""
    with tms.region(tag, backup="host"):
        cache = torch.ones(4096, 2 * MiB, dtype=torch.uint8, device="cuda")
    mask = torch.rand(4096) < 0.05
    used = int(mask.sum()) * 2 * MiB
    for words, live in [("all of it", False), ("live", True)] * 2:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if live:
            tms.live(cache, mask)
        tms.pause(tag)
        paused = time.perf_counter()
        kept = host_bytes(tag)
        tms.resume(tag)
        print(
            f"{words}: pause {paused - begin:.3f} s, resume {time.perf_counter() - paused:.3f} s, "
            f"{kept / MiB:.0f} MiB kept of {used / MiB:.0f} MiB in use"
        )
        assert kept <= (1.05 * used if live else cache.nbytes)
        assert bool((cache[mask] == 1).all())
        cache.fill_(1)
