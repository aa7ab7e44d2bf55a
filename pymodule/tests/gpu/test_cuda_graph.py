"""CUDA graphs whose own memory is pausable: tms.cuda_graph, torch.cuda.graph and torch.compile."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import tags
from device import MiB, free_memory, full, holds, torch_on_gpu

import tms
from torch_memory_saver import torch_memory_saver

torch = torch_on_gpu()

SIZE = 64 * MiB
SLACK = 32 * MiB


@contextlib.contextmanager
def region_around(graph: Any, tag: str, backup: str | None, **arguments: Any) -> Iterator[None]:
    """As vLLM captures: only the region around it knows of the graph."""
    with tms.region(tag, backup=backup), torch.cuda.graph(graph, **arguments):
        yield


@contextlib.contextmanager
def region_within(graph: Any, tag: str, backup: str | None) -> Iterator[None]:
    """A region that is entered during the capture."""
    with torch.cuda.graph(graph), tms.region(tag, backup=backup):
        yield


def capture_tms(graph: Any, tag: str, backup: str | None, **arguments: Any) -> Any:
    return tms.cuda_graph(graph, tag=tag, backup=backup, **arguments)


def capture_dropin(graph: Any, tag: str, backup: str | None, **arguments: Any) -> Any:
    """As sglang captures."""
    cpu = backup == "host"
    return torch_memory_saver.cuda_graph(
        cuda_graph=graph, tag=tag, enable_cpu_backup=cpu, **arguments
    )


WAYS = [capture_tms, capture_dropin, region_around]


@pytest.mark.parametrize(
    ("way", "inside"),
    [*itertools.product(WAYS, ["outside regions", "inside a region"])]
    + [(region_within, "outside regions")],
)
@pytest.mark.parametrize("backup", [None, "host"])
def test_replay_after_resume(way: Any, backup: str | None, inside: str, tag: str) -> None:
    source = full(1, SIZE)
    graph = torch.cuda.CUDAGraph()
    around = f"{tag} around"
    region = tms.region(around) if inside == "inside a region" else contextlib.nullcontext()
    torch.cuda.synchronize()
    with region:
        with way(graph, tag, backup):
            between = source + 1
            result = between + 1
            del between
        assert tags.total("live_bytes", around) == 0  # the graph's pool served the capture
        beside = full(9, SIZE)
    assert tags.total("live_bytes", tag) >= 2 * SIZE
    address = result.data_ptr()
    for number in range(1, 4):
        source.fill_(number)
        graph.replay()
        assert holds(result, number + 2)
        before = free_memory()
        tms.pause(tag)
        assert free_memory() >= before + 2 * SIZE - SLACK
        tms.resume(tag)
        assert abs(free_memory() - before) <= SLACK
        assert result.data_ptr() == address
        if backup:
            assert holds(result, number + 2)
        source.fill_(10 + number)
        graph.replay()
        assert holds(result, 12 + number)
        assert holds(beside, 9)


@pytest.mark.parametrize("way", WAYS)
def test_many_graphs_share_a_pool(way: Any, tag: str) -> None:
    """From the largest batch to the smallest, on one stream; one's free memory serves others."""
    source = full(1, SIZE)
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    graphs = []
    torch.cuda.synchronize()
    for number in range(24):
        size = SIZE >> (number // 2)
        graph = torch.cuda.CUDAGraph()
        with way(graph, tag, None, pool=pool, stream=stream):
            between = source[:size] * 2
            result = between + number
            del between
        graphs.append((number, graph, result))
    held = tags.total("live_bytes", tag)
    assert held >= sum(result.nbytes for _, _, result in graphs)
    for cycle in range(1, 4):
        before = free_memory()
        tms.pause(tag)
        assert free_memory() >= before + held - SLACK
        tms.resume(tag)
        source.fill_(cycle)
        for number, graph, result in reversed(graphs):
            graph.replay()
            assert holds(result, 2 * cycle + number)


@pytest.mark.parametrize("way", [capture_tms, capture_dropin])
def test_errors_within(way: Any, tag: str) -> None:
    """A pause within is refused and ends the capture; the settings from before hold again."""
    with tms.region(tag, backup="host"):
        kept = full(3, SIZE)
        with pytest.raises(tms.CaptureError), way(torch.cuda.CUDAGraph(), f"{tag} graph", None):
            tms.pause(tag)
        beside = full(4, SIZE)
    with tms.paused(tag):
        pass
    assert holds(kept, 3)
    assert holds(beside, 4)


def test_freed_while_paused(tag: str) -> None:
    graph = torch.cuda.CUDAGraph()
    source = full(1, SIZE)
    torch.cuda.synchronize()
    before = free_memory()
    with tms.cuda_graph(graph, tag=tag, backup="host"):
        result = source + 1
    tms.pause(tag)
    del result, graph
    assert abs(free_memory() - before) <= SLACK
    tms.resume(tag)
    assert tags.total("live_bytes", tag) == 0


@pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="torch.compile needs Triton")
@pytest.mark.parametrize("backup", [None, "host"])
def test_compiled_with_reduced_overhead(
    backup: str | None, tag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The graphs that torch.compile captures of a function called within a region."""
    monkeypatch.setattr(importlib.import_module("torch._inductor.config"), "compile_threads", 1)
    side = 2048
    with tms.region(f"{tag} weights", backup="host"):
        weights = torch.randint(-1, 2, (side, side), dtype=torch.float32, device="cuda")

    def function(x: Any) -> Any:
        return torch.relu(x @ weights) + 1

    def inputs() -> Any:
        return torch.randint(-4, 5, (side, side), dtype=torch.float32, device="cuda")

    compiled = torch.compile(function, mode="reduce-overhead")

    def check() -> None:
        x = inputs()
        torch.compiler.cudagraph_mark_step_begin()
        assert torch.equal(compiled(x), function(x))  # whole numbers: exact

    try:
        with torch.no_grad():
            for _ in range(3):  # as it is, captured, replayed
                x = inputs()
                torch.compiler.cudagraph_mark_step_begin()
                with tms.region(tag, backup=backup):
                    result = compiled(x)
                assert torch.equal(result, function(x))
                del result
            held = tags.total("live_bytes", tag)
            assert held >= side * side * 4
            for _ in range(3):
                before = free_memory()
                tms.pause()
                assert free_memory() >= before + held - SLACK
                tms.resume()
                check()
    finally:
        torch._dynamo.reset()
