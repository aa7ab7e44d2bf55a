"""What programs do with tms: graphs, training, reinforcement learning, worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from device import MiB, free_memory, holds, resident_memory, torch_on_gpu

import tms

torch = torch_on_gpu()


def test_graph_over_region_tensors(tag: str) -> None:
    with tms.region(tag, backup="host"):
        source = torch.zeros(64 * MiB, device="cuda")
        factor = torch.full((64 * MiB,), 3.0, device="cuda")
        result = torch.empty_like(source)

    def work() -> None:
        torch.add(source * factor, 1.0, out=result)

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    for number in range(4):
        source.fill_(number)
        graph.replay()
        assert holds(result, 3 * number + 1)
        tms.pause(tag)
        tms.resume(tag)
        assert holds(result, 3 * number + 1)
        graph.replay()
        assert holds(result, 3 * number + 1)


def test_graph_whose_own_memory_is_pausable(tag: str) -> None:
    """In a region, memory that the graph takes during its capture is pausable."""
    source = torch.zeros(64 * MiB, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), tms.region(tag, backup="host"):
        between = source * 2
        result = between + 1
    before = free_memory()
    for number in range(3):
        source.fill_(number)
        graph.replay()
        address = result.data_ptr()
        tms.pause(tag)
        assert free_memory() >= before + result.nbytes - 32 * MiB
        tms.resume(tag)
        assert result.data_ptr() == address
        assert holds(result, 2 * number + 1)
        source.fill_(number + 10)
        graph.replay()
        assert holds(result, 2 * number + 21)


def test_capture_inside_a_region(tag: str) -> None:
    """A capture entirely within a region, and ordinary tensors made next to it."""
    with tms.region(tag, backup="host"):
        source = torch.ones(MiB, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = (source + 1) * 2
        after = torch.full((MiB,), 9.0, device="cuda")
    with tms.paused(tag):
        ordinary = torch.full((MiB,), 7.0, device="cuda")
    graph.replay()
    assert holds(result, 4)
    assert holds(after, 9)
    assert holds(ordinary, 7)


def make_training() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 256)
    ).cuda()
    return model, torch.optim.Adam(model.parameters(), lr=1e-3)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, number: int) -> str:
    generator = torch.Generator("cuda").manual_seed(number)
    inputs = torch.randn(128, 256, device="cuda", generator=generator)
    loss = (model(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=number % 2 == 0)
    return loss.item().hex()


def test_training_in_a_region(tag: str) -> None:
    model, optimizer = make_training()
    expected = [train_step(model, optimizer, number) for number in range(12)]

    with tms.region(tag, backup="host"):
        model, optimizer = make_training()
        losses = [train_step(model, optimizer, number) for number in range(6)]
    addresses = [parameter.data_ptr() for parameter in model.parameters()]
    with tms.paused(tag):
        torch.cuda.empty_cache()
    losses += [train_step(model, optimizer, number) for number in range(6, 9)]
    with tms.paused(tag):
        pass
    with tms.region(tag, backup="host"):
        losses += [train_step(model, optimizer, number) for number in range(9, 12)]
    assert losses == expected
    assert [parameter.data_ptr() for parameter in model.parameters()] == addresses


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


def test_whole_process_pausable() -> None:
    """TMS_INIT_ENABLE makes everything pausable, except what disable() encloses."""
    program = """
import torch, tms
tensor = torch.full((256 << 20,), 3, dtype=torch.uint8, device="cuda")
with tms.disable():
    ordinary = torch.full((256 << 20,), 4, dtype=torch.uint8, device="cuda")
with tms.region("weights", backup="host"):
    weights = torch.full((256 << 20,), 5, dtype=torch.uint8, device="cuda")
before = torch.cuda.mem_get_info()[0]
tms.pause()
print(torch.cuda.mem_get_info()[0] - before >= 500 << 20, ordinary[-1:].cpu().item())
tms.resume()
print(weights[-1:].cpu().item())
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TMS_INIT_ENABLE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "True 4\n5\n", done.stderr


def test_other_backends_are_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import torch, tms\nwith tms.region(): pass"],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "NotSupportedError: PyTorch's CUDA allocator is 'cudaMallocAsync'" in done.stderr
