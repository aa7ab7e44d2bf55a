"""Every byte that a process has on a GPU has a name: tms run --account and tms ps --bytes.

Bytes that no allocation names are the difference from all that the process has, which alone would
prove nothing: the test compares it with that of a process which has loaded the same code and holds
little. The figure for a process is NVML's; where NVML numbers processes otherwise, as in a
container, it is what another process finds missing from the device's memory. With -s the names are
printed. BYTES_GIB (8) is how large the weights are.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from device import MiB, torch_on_gpu, unpreloaded

torch = torch_on_gpu()

GIB = int(os.environ.get("BYTES_GIB", "8"))
TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
NAMED = 0.99

SERVER = """
import sys
import torch, tms

count = int(sys.argv[1])  # of layers of 128 MiB
made = dict(device="cuda", dtype=torch.bfloat16)
with tms.region("weights"):
    weights = [torch.randn(8192, 8192, **made) / 64 for _ in range(count)]
with tms.exclude():
    outside = torch.zeros(count << 20, device="cuda", dtype=torch.uint8)
source = torch.randn(64, 8192, **made)
for _ in range(3):
    torch.relu(source @ weights[0]) @ weights[1]
torch.cuda.synchronize()
graphs = []
for i in range(min(32, count - 1)):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = torch.relu(source @ weights[i]) @ weights[i + 1]
    graph.replay()
    graphs.append((graph, result))
torch.cuda.synchronize()
tms.serve()
print("ready", flush=True)
sys.stdin.readline()
"""

RANK = """
import sys
import torch, tms
import torch.distributed as dist

rank, count, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.cuda.set_device(rank)
made = dict(device="cuda", dtype=torch.bfloat16)
weights = [torch.ones(8192, 8192, **made) for _ in range(count)]
torch.relu(weights[0] @ weights[1])
if store:
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2)
    for weight in weights:
        dist.all_reduce(weight)
        dist.broadcast(weight, 0)
torch.cuda.synchronize()
tms.serve()
print("ready", flush=True)
sys.stdin.readline()
"""

BARE = """
import ctypes, sys
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert driver.cuInit(0) == 0 and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
print("ready", flush=True)
sys.stdin.readline()
"""


class Bytes(NamedTuple):
    """What a process has on one device."""

    used: int
    source: str  # nvml, or "difference" in the device's free memory
    parts: dict[str, int]

    @property
    def named(self) -> int:
        return sum(self.parts.values())

    @property
    def rest(self) -> int:
        return self.used - self.named


def free_bytes(device: int) -> int:
    return int(torch.cuda.mem_get_info(device)[0])


@contextmanager
def started(
    programs: list[tuple[str, tuple[str, ...]]], runtime: Path, account: bool = True
) -> Iterator[list[int]]:
    """Starts processes together, and returns their numbers once all are ready."""
    run = [str(TMS), "run", "--account", "--"] if account else []
    with ExitStack() as stack:
        processes = []
        for program, arguments in programs:
            process = stack.enter_context(
                subprocess.Popen(
                    [*run, sys.executable, "-c", textwrap.dedent(program), *arguments],
                    env=unpreloaded(XDG_RUNTIME_DIR=str(runtime)),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout is not None
            said = iter(process.stdout.readline, "")
            assert any(words.strip() == "ready" for words in said), process.wait()
        yield [process.pid for process in processes]


def ask(runtime: Path, *arguments: str) -> str:
    """What tms ps --bytes prints."""
    return subprocess.run(
        [str(TMS), "ps", "--bytes", *arguments],
        env=unpreloaded(XDG_RUNTIME_DIR=str(runtime)),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def look(runtime: Path, pid: int, device: int, missing: int) -> Bytes:
    """What the process has there; missing is what the device's free memory has lost."""
    processes: list[dict[str, Any]] = json.loads(ask(runtime, "--json"))
    (process,) = [p for p in processes if p["pid"] == pid]
    assert not process.get("error") and process["account"]["uncounted"] == 0
    (on,) = [d for d in process["bytes"] if d["device"] == device]
    parts = {f"{p['kind']} {p['name']}": int(p["bytes"]) for p in on["parts"]}
    if on["source"] == "nvml":
        return Bytes(int(on["used_bytes"]), "nvml", parts)
    return Bytes(missing, "difference", parts)


def line(name: str, size: int, of: int) -> str:
    return f"| {name} | {size / MiB:.1f} MiB | {100 * size / of:.2f}% |"


def table(title: str, all_: Bytes, context: int) -> str:
    rows = [
        f"{title}: {all_.used / MiB:.1f} MiB ({all_.source})",
        "| | | |",
        "| --- | ---: | ---: |",
        *(line(name, size, all_.used) for name, size in all_.parts.items()),
        line("named by an allocation", all_.named, all_.used),
        line("the difference", all_.rest, all_.used),
        line("of a process that holds little", context, all_.used),
        line("named with that", all_.named + context, all_.used),
    ]
    return "\n".join(rows)


@pytest.fixture
def free() -> list[int]:
    """Free bytes of each device, before any process of the test is there."""
    for device in range(torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{device}")
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return [free_bytes(device) for device in range(torch.cuda.device_count())]


def check(all_: Bytes, context: int) -> None:
    """The names, and a context of its size elsewhere, make up all but 1%, and not more than all."""
    assert abs(all_.used - all_.named - context) <= (1 - NAMED) * all_.used


def test_server(free: list[int], tmp_path: Path) -> None:
    with started([(BARE, ())], tmp_path, account=False):
        bare = free[0] - free_bytes(0)
    with started([(SERVER, ("2",))], tmp_path) as (pid,):
        little = look(tmp_path, pid, 0, free[0] - free_bytes(0))
    with started([(SERVER, (str(GIB * 8),))], tmp_path) as (pid,):
        server = look(tmp_path, pid, 0, free[0] - free_bytes(0))
        print("\n" + ask(tmp_path))
    print(table(f"PyTorch with {GIB} GiB of weights and 32 graphs", server, little.rest))
    print(f"a bare context: {bare / MiB:.1f} MiB; with the same code: {little.rest / MiB:.1f} MiB")
    assert server.parts["tag weights"] >= GIB << 30
    assert server.parts["allocations libc10_cuda.so"] >= GIB * 8 * MiB
    assert little.rest > 0 and bare <= little.rest + 64 * MiB
    check(server, little.rest)


@pytest.mark.several_gpus
def test_two_ranks(free: list[int], tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("two GPUs are needed")
    alone: list[Bytes] = []
    little: list[Bytes] = []
    large: list[Bytes] = []
    for found, count, store in (
        (alone, 2, ""),
        (little, 2, str(tmp_path / "little")),
        (large, GIB * 8, str(tmp_path / "large")),
    ):
        ranks = [(RANK, (str(rank), str(count), store)) for rank in range(2)]
        with started(ranks, tmp_path) as numbers:
            for rank, pid in enumerate(numbers):
                found.append(look(tmp_path, pid, rank, free[rank] - free_bytes(rank)))
            if found is large:
                print("\n" + ask(tmp_path))
    for rank in range(2):
        print(table(f"rank {rank} of two with NCCL", large[rank], little[rank].rest))
        more = little[rank].rest - alone[rank].rest
        print(f"of the difference, NCCL's code and local memory: {more / MiB:.1f} MiB")
        nccl = [n for n in large[rank].parts if n.startswith("allocations libnccl")]
        assert sum(large[rank].parts[name] for name in nccl) >= MiB
        check(large[rank], little[rank].rest)
