"""What programs do with tms: graphs, training, reinforcement learning, worker processes."""

from __future__ import annotations

import time

from device import MiB, free_memory, holds, resident_memory, run, torch_on_gpu

import tms

torch = torch_on_gpu()


def test_fifty_cycles(tag: str) -> None:
    """Rollout and training take turns on one GPU; neither host nor device memory grows."""
    weights_tag, cache_tag = f"{tag} weights", f"{tag} cache"
    with tms.region(weights_tag, backup="host"):
        weights = torch.randint(0, 256, (256 * MiB,), dtype=torch.uint8, device="cuda")
    with tms.region(cache_tag):
        cache = torch.zeros(1024 * MiB, dtype=torch.uint8, device="cuda")
    expected = weights.clone()
    seen: list[tuple[int, int]] = []
    for cycle in range(50):
        cache.fill_(cycle)
        with tms.region(cache_tag):
            scratch = torch.full((64 * MiB,), cycle, dtype=torch.uint8, device="cuda")
        assert int(scratch[-1]) == int(cache[-1]) == cycle
        del scratch
        tms.pause(cache_tag)
        tms.pause(weights_tag)
        training = torch.full((512 * MiB,), cycle, dtype=torch.uint8, device="cuda")
        assert int(training[-1]) == cycle
        del training
        torch.cuda.empty_cache()
        tms.resume(weights_tag)
        weights += 1
        expected += 1
        tms.resume(cache_tag)
        if cycle in (9, 49):
            assert torch.equal(weights, expected)
            time.sleep(1)  # host memory is released in the background
            seen.append((free_memory(), resident_memory()))
    (free_early, resident_early), (free_late, resident_late) = seen
    assert abs(free_late - free_early) <= 32 * MiB
    assert resident_late <= resident_early + 64 * MiB


def test_other_sizes_each_cycle(tag: str) -> None:
    """A cache changes its size: what the old one held is released."""
    tms.empty_cache()
    before = free_memory()
    for size in (1000, 3000, 2000, 4000, 1000):
        with tms.region(tag):
            cache = torch.full((size * MiB,), 1, dtype=torch.uint8, device="cuda")
        with tms.paused(tag):
            pass
        cache.fill_(2)
        del cache
        tms.empty_cache()
        assert abs(free_memory() - before) <= 32 * MiB


def test_forked_workers_of_a_data_loader(tag: str) -> None:
    """Workers forked after tms was used do their work as usual."""
    with tms.region(tag, backup="host"):
        weights = torch.ones(MiB, device="cuda")
    with tms.paused(tag):
        pass
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(64)),
        batch_size=8,
        num_workers=2,
        timeout=60,
        multiprocessing_context="fork",
    )
    assert sum(int(batch.sum()) for (batch,) in loader) == sum(range(64))
    with tms.paused(tag):
        pass
    assert holds(weights, 1)


def test_other_backends_are_refused() -> None:
    program = "import torch, tms\nwith tms.region(): pass"
    done = run("-c", program, PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync")
    assert done.returncode == 1
    assert "NotSupportedError: PyTorch's CUDA allocator is 'cudaMallocAsync'" in done.stderr
