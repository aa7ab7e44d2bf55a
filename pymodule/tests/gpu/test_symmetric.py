"""PyTorch's symmetric memory in a region: all-reduces and barriers in a captured graph, and pauses.

Two ranks and four, with a GPU each; two on one GPU, if there is only one. Multicast is off: memory
bound to a multicast object stays (docs/compatibility.md). Prints its figures as JSON (`pytest -s`).
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any

import pytest
from device import torch_on_gpu
from group import last_line, meeting, started, with_programs

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus
if not hasattr(getattr(torch.ops, "symm_mem", None), "one_shot_all_reduce"):
    pytest.skip("this PyTorch has no symmetric memory", allow_module_level=True)

CYCLES = int(os.environ.get("TESTS_SYMMETRIC_CYCLES", "100"))

RANK = """
import json, os, sys, warnings
import torch, torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import tms
from pausing import all_here, count, cycles, devices, pauses, rank, refused_alone

device = torch.device("cuda", rank % devices)
group = dist.group.WORLD.group_name
COUNT = 16 << 20  # numbers of 4 bytes in a buffer
pool = sys.argv[6] == "pool"


def tag(name="symmetric"):
    return next(t for d in tms.stats()["devices"] for t in d["tags"] if t["tag"] == name)


def symmetric():
    if not pool:
        return symm_mem.empty(COUNT, dtype=torch.float32, device=device)
    with torch.cuda.use_mem_pool(symm_mem.get_mem_pool(device)):
        return torch.empty(COUNT, dtype=torch.float32, device=device)


with tms.region("symmetric", backup="host"):
    one, two = symmetric(), symmetric()
with warnings.catch_warnings(record=True):
    warnings.simplefilter("always")
    handles = [symm_mem.rendezvous(each, group) for each in (one, two)]
if None in handles:
    print("skip: this PyTorch takes a tensor of a region from the region's pool", flush=True)
    os._exit(0)
handle = handles[0]
assert not handle.multicast_ptr
held = tag()
assert held["physical_bytes"] >= 2 * 4 * COUNT, held
if not held["imported_bytes"]:
    print("skip: PyTorch has handed memory over by fabric handles here", flush=True)
    os._exit(0)
assert held["imported_bytes"] == (count - 1) * held["physical_bytes"], held
own_bytes = held["physical_bytes"]

neighbour = (rank + 1) % count
theirs = handle.get_buffer(neighbour, (COUNT,), torch.float32)
read = torch.zeros(COUNT, device=device)
reduced = torch.zeros(COUNT, device=device)


def work():
    handle.barrier(channel=0)
    read.copy_(theirs)
    reduced.copy_(torch.ops.symm_mem.one_shot_all_reduce(one, "sum", group))
    handle.barrier(channel=1)
    torch.ops.symm_mem.two_shot_all_reduce_(two, "sum", group)


def fill(cycle):
    one.fill_(rank + 1 + cycle)
    two.fill_(10 * (rank + 1) + cycle)
    read.zero_()
    reduced.zero_()
    all_here()


def right(cycle):
    all_here()
    return (
        bool((read == neighbour + 1 + cycle).all())
        and bool((reduced == sum(r + 1 + cycle for r in range(count))).all())
        and bool((two == sum(10 * (r + 1) + cycle for r in range(count))).all())
        and bool((one == rank + 1 + cycle).all())
    )


fill(-1)
work()
assert right(-1)
graph = torch.cuda.CUDAGraph()
fill(-2)
with torch.cuda.graph(graph):
    work()
all_here()
graph.replay()
assert right(-2)


def replayed(cycle):
    fill(cycle)
    graph.replay()
    return right(cycle)


def kept(cycle):
    before = right(cycle)  # what was in the buffers
    if cycle % 10 == 0:
        fill(cycle + 0.5)
        work()  # without the graph
        assert right(cycle + 0.5)
    return before


def nothing_is_held():
    held = tag()
    assert held["physical_bytes"] == held["imported_bytes"] == 0, held


figures = pauses("symmetric", replayed, kept, nothing_is_held)
assert figures["bytes"] == own_bytes, figures
alone = refused_alone("symmetric")
assert rank or "other processes have the memory mapped" in alone, alone
assert replayed(cycles)
if rank == 0:
    print(json.dumps(figures), flush=True)
all_here()
os._exit(0)
"""


def pauses(ranks: int, cycles: int, kind: str) -> dict[str, Any]:
    """The first rank's figures, for a number of ranks, with a GPU each if there are enough."""
    devices = min(ranks, torch.cuda.device_count())
    peers = itertools.permutations(range(devices), 2)
    if not all(torch.cuda.can_device_access_peer(*pair) for pair in peers):
        pytest.skip("the GPUs have no access to one another")
    arguments = [*(str(each) for each in (ranks, devices, cycles)), meeting(), kind]
    variables = {"TMS_SHAREABLE": "1", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", **with_programs()}
    if devices < ranks:
        variables["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    with started(ranks, ["-c", RANK], *arguments, **variables) as running:
        last = last_line(running[0], within=150)
        assert [each.wait(20) for each in running] == [0] * ranks
    if last.startswith("skip: "):
        pytest.skip(last[len("skip: ") :])
    print(last)
    return dict(json.loads(last))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_hundred_pauses_between_all_reduces(ranks: int) -> None:
    if ranks == 4 and torch.cuda.device_count() < 4:
        pytest.skip("there are fewer than four GPUs")
    assert pauses(ranks, CYCLES, "empty")["cycles"] == CYCLES


def test_a_pool_of_symmetric_memory() -> None:
    """torch.cuda.MemPool over the same allocator (symm_mem.get_mem_pool)."""
    import torch.distributed._symmetric_memory as symm_mem

    if not hasattr(symm_mem, "get_mem_pool"):
        pytest.skip("this PyTorch has no pool of symmetric memory")
    assert pauses(2, 5, "pool")["cycles"] == 5
