"""Two GPUs in one process, and in two: copies and kernels across, contents kept across, NCCL."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from device import MiB, free_memory, full, holds, reaching, torch_on_gpu
from group import last_line, meeting, started

import tms

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus

if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

SIZE = 64 * MiB


@pytest.fixture
def pair(tag: str) -> Any:
    """A region's tensors on both devices."""
    with tms.region(tag, backup="host"):
        return full(1, SIZE), full(2, SIZE, device=1)


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
    """cudaMemcpy, as a C program calls it, which needs no peer access."""
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
    with tms.region(tag, backup=backup):
        tensors = [
            torch.randint(255, (SIZE,), dtype=torch.uint8, device="cuda:0") for _ in range(8)
        ]
    torch.cuda.synchronize(0)
    copies = [tensor.cpu() for tensor in tensors]
    before = free_memory(0), free_memory(1)
    for _ in range(3):
        tms.pause(tag)
        assert free_memory(0) >= before[0] + 8 * SIZE
        assert free_memory(1) <= before[1] - 8 * SIZE
        tms.resume(tag)
        for tensor, copy in zip(tensors, copies):
            assert torch.equal(tensor.cpu(), copy)


BEGIN = """
import os, sys
import torch, torch.distributed as dist
import tms
rank = int(sys.argv[1])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", init_method=sys.argv[2], rank=rank, world_size=2)
"""


def in_two_processes(program: str, **variables: str) -> None:
    """Runs the program on each device, connected by NCCL; it ends by printing "done"."""
    code = ["-c", BEGIN + textwrap.dedent(program)]
    with started(2, code, meeting(), **variables) as workers:
        for worker in workers:
            assert last_line(worker, within=120) == "done"


def test_all_reduce_in_a_graph() -> None:
    """Captured once, with buffers that NCCL does not register; replayed after each resume."""
    in_two_processes(
        """
        SIZE = 16 << 20
        with tms.region("source", backup="host"):
            x = torch.ones(SIZE, device="cuda")
        warm = x.clone()
        dist.all_reduce(warm)  # connects: not during the capture
        assert (warm == 2).all()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Other threads, NCCL's and PyTorch's watchdog, may call what a capture forbids.
        with tms.cuda_graph(graph, capture_error_mode="thread_local", tag="graph", backup="host"):
            y = x * 2
            dist.all_reduce(y)
        live = {t["tag"]: t["live_bytes"] for d in tms.stats()["devices"] for t in d["tags"]}
        assert live["graph"] >= y.nbytes, live
        address = y.data_ptr()
        for cycle in range(3):
            x.fill_((rank + 1) * (cycle + 1))
            graph.replay()
            assert (y == 6 * (cycle + 1)).all(), y[:3]
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]
            tms.pause()
            assert torch.cuda.mem_get_info()[0] >= before + x.nbytes + y.nbytes
            tms.resume()
            assert (y == 6 * (cycle + 1)).all(), y[:3]
            y.zero_()
            graph.replay()
            assert (y == 6 * (cycle + 1)).all(), y[:3]
            dist.all_reduce(x)  # outside the graph
            assert (x == 3 * (cycle + 1)).all(), x[:3]
        assert y.data_ptr() == address
        del y
        graph.reset()  # the communicator's end would wait for it
        dist.destroy_process_group()
        print("done")
        """,
        NCCL_GRAPH_REGISTER="0",
    )


@pytest.mark.parametrize("how", ["preloaded", "run"])
def test_graphs_whose_buffers_nccl_would_register(how: str) -> None:
    """NCCL asks for handles of the buffers of every collective that is captured, and must get none:
    it would use the memory of before a pause. Under `tms run` a pause leaves nothing behind either;
    else NCCL (2.28.9) keeps what it could not export."""
    in_two_processes(
        """
        COUNT = 16 << 20
        with tms.region("buffers", backup="host"):
            own = torch.ones(COUNT, device="cuda")
            both = torch.empty(2 * COUNT, device="cuda")
            half = torch.empty(COUNT // 2, device="cuda")
            other = torch.empty(COUNT, device="cuda")
        def exchange():
            operations = [
                dist.P2POp(dist.isend, own, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        work = {
            "all_reduce": lambda: dist.all_reduce(own),
            "all_gather": lambda: dist.all_gather_into_tensor(both, own),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(half, own),
            "exchange": exchange,
        }
        graphs = {}
        for name, what in work.items():
            what()  # connects: not during the capture
            torch.cuda.synchronize()
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name], capture_error_mode="thread_local"):
                what()
        live = sum(each.nbytes for each in (own, both, half, other))
        for cycle in range(3):
            values = [10.0 * cycle + 1, 10.0 * cycle + 2]
            expected = {
                "all_reduce": (own, [sum(values)]),
                "all_gather": (both, values),
                "reduce_scatter": (half, [sum(values)]),
                "exchange": (other, [values[1 - rank]]),
            }
            for name, (result, parts) in expected.items():
                for each in (both, half, other):
                    each.zero_()
                own.fill_(values[rank])
                torch.cuda.synchronize()
                dist.barrier()
                graphs[name].replay()
                torch.cuda.synchronize()
                for part, value in zip(result.chunk(len(parts)), parts):
                    assert (part == value).all(), (name, cycle, part[:3], value)
            dist.barrier()
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]
            tms.pause()
            freed = torch.cuda.mem_get_info()[0] - before
            assert freed >= live or "libtms_reach" not in os.environ["LD_PRELOAD"], (freed, live)
            dist.barrier()
            tms.resume()
        for graph in graphs.values():
            graph.reset()
        dist.destroy_process_group()
        print("done")
        """,
        **(reaching() if how == "run" else {}),
    )
