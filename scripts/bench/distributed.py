"""What tms.distributed itself costs against the number of ranks: both phases, nothing to pause.

    python scripts/bench/distributed.py [--ranks 8 64 512] [--rounds 40]

Needs PyTorch, and no GPU: each rank is a process, with its own connection to one TCPStore. All
share this machine's cores, so what ranks do themselves counts as often as there are ranks for a
core. For that the floor: what a round takes here in which every rank sets a key of the store and
gets its neighbour's. Columns: the messages that wait for one another; the floor; a call, and how
many floors that is; what the store's process and all ranks together compute for it, by the kernel's
account, and that for each core: no call is shorter here than the last.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import usage  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "pymodule"))

from tms import _meeting
from tms._together import Part


class Nothing(Part):
    """A part without memory, and without the library."""

    def check(self) -> dict[str, Any]:
        return {"asks": [self.operation, self.tag, self.rank], "needs": {}, "failures": []}

    def do(self) -> int:
        return 0

    def take_back(self) -> None:
        pass


def connected(port: int, server: bool = False) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        "127.0.0.1", port, world_size=None, is_master=server, wait_for_workers=False
    )


def raise_priority() -> None:
    """Where that is allowed, so that others on the machine do not count."""
    with contextlib.suppress(PermissionError):
        os.nice(-10)


def computed(process: int) -> float:
    """Seconds that the threads of a process have run."""
    tasks = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def rank(
    number: int, count: int, port: int, server: int, rounds: int, own: Any, results: Any
) -> None:
    """One of `count` ranks."""
    import torch.distributed as dist

    raise_priority()
    store = dist.PrefixStore(f"bench/{count}", connected(port))
    meeting = _meeting.Meeting(store, number, list(range(count)))
    part = Nothing("pause", None, number, 60)
    meeting.transact(part, 300)  # all are there
    start = time.perf_counter()
    for each in range(rounds):
        store.set(f"floor/{each}/{number}", "0")
        store.get(f"floor/{each}/{(number + 1) % count}")
    floor = (time.perf_counter() - start) / rounds
    meeting.transact(part, 300)
    times = []
    before = computed(server), time.process_time()
    for _ in range(rounds):
        start = time.perf_counter()
        meeting.transact(part, 60)
        times.append(time.perf_counter() - start)
    own[number] = (time.process_time() - before[1]) / rounds
    if number == count - 1:
        results.put((floor, times, (computed(server) - before[0]) / rounds))


def steps(count: int) -> int:
    """Messages that wait for one another: votes to rank 0, and the decision back, in two phases."""
    depth, last = 0, count - 1
    while last > 0:
        last = (last - 1) // _meeting.FAN
        depth += 1
    return 2 * (depth + 1)


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    arguments.add_argument("--rounds", type=int, default=40)
    given = arguments.parse_args()

    import torch.distributed  # noqa: F401  # once for all processes, which are forks of this one

    gc.freeze()
    context = multiprocessing.get_context("fork")
    serving, results = context.Queue(), context.Queue()
    server = context.Process(target=serve, args=(serving,), daemon=True)
    server.start()
    port = serving.get()
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
    print(f"{load}, {given.rounds} rounds, a process for each rank; milliseconds")
    print("ranks  steps  floor  call: median  floors  least  90% below", end="")
    print("  store's  ranks'  a core")
    for count in given.ranks:
        own = context.Array("d", count)
        workers = [
            context.Process(
                target=rank,
                args=(number, count, port, server.pid, given.rounds, own, results),
            )
            for number in range(count)
        ]
        for worker in workers:
            worker.start()
        floor, taken, stores = results.get()
        times = sorted(1000 * seconds for seconds in taken)
        for worker in workers:
            worker.join()
        median = statistics.median(times)
        all_own = sum(own)
        core = (stores + all_own) / (os.cpu_count() or 1)
        print(
            f"{count:5}  {steps(count):5}  {1000 * floor:5.1f}  {median:12.2f}"
            f"  {median / 1000 / floor:6.2f}  {times[0]:5.2f}"
            f"  {times[len(times) * 9 // 10]:9.2f}  {1000 * stores:7.2f}  {1000 * all_own:6.1f}"
            f"  {1000 * core:6.1f}",
            flush=True,
        )


def serve(port: Any) -> None:
    raise_priority()
    store = connected(0, server=True)
    port.put(store.port)
    time.sleep(3600)


if __name__ == "__main__":
    main()
