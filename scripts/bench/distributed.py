"""What tms.distributed itself costs against the number of ranks: both phases, nothing to pause.

    python scripts/bench/distributed.py [--ranks 8 64 512] [--rounds 50] [--processes 8]

Needs PyTorch, and no GPU: each rank is a thread with its own connection to one TCPStore, in as many
processes as --processes says. All share this machine's cores, so what ranks do themselves counts as
often as there are ranks for a core. Columns: the messages that wait for one another; the time of a
call; what the store's process and a rank's thread compute for it. With a core for each rank no more
than the store's part would grow with their number.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import sys
import threading
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


def ranks(
    port: int, server: int, first: int, last: int, count: int, rounds: int, results: Any
) -> None:
    """Ranks first to last - 1 of so many, in this process."""
    import torch.distributed as dist

    raise_priority()

    def one(rank: int) -> None:
        store = dist.PrefixStore(f"bench/{count}", connected(port))
        meeting = _meeting.Meeting(store, rank, list(range(count)))
        part = Nothing("pause", None, rank, 60)
        meeting.transact(part, 300)  # all are there
        times = []
        before = computed(server), time.thread_time()
        for _ in range(rounds):
            start = time.perf_counter()
            meeting.transact(part, 60)
            times.append(time.perf_counter() - start)
        if rank == count - 1:  # one that hears nobody, as most
            own = (time.thread_time() - before[1]) / rounds
            results.put((times, (computed(server) - before[0]) / rounds, own))

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(first, last)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def steps(count: int) -> int:
    """Votes that wait for one another on the way to rank 0, and the decision, in two phases."""
    depth, rank = 0, count - 1
    while rank > 0:
        rank = (rank - 1) // _meeting.FAN
        depth += 1
    return 2 * (depth + 1) if count > 1 else 0


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--ranks", type=int, nargs="+", default=[8, 64, 512])
    arguments.add_argument("--rounds", type=int, default=50)
    arguments.add_argument("--processes", type=int, default=8)
    given = arguments.parse_args()

    context = multiprocessing.get_context("spawn")
    serving, results = context.Queue(), context.Queue()
    server = context.Process(target=serve, args=(serving,), daemon=True)
    server.start()
    port = serving.get()
    load = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before"
    print(f"{load}, {given.rounds} rounds, {given.processes} processes with the ranks as threads")
    print("ranks  steps  median ms  least ms  90% below ms  store's ms  a rank's own ms")
    for count in given.ranks:
        borders = [count * i // given.processes for i in range(given.processes + 1)]
        workers = [
            context.Process(
                target=ranks, args=(port, server.pid, first, last, count, given.rounds, results)
            )
            for first, last in zip(borders, borders[1:])
            if last > first
        ]
        for worker in workers:
            worker.start()
        taken, stores, own = results.get()
        times = sorted(1000 * seconds for seconds in taken)
        for worker in workers:
            worker.join()
        print(
            f"{count:5}  {steps(count):5}  {statistics.median(times):9.2f}  {times[0]:8.2f}"
            f"  {times[len(times) * 9 // 10]:12.2f}  {1000 * stores:10.2f}  {1000 * own:15.2f}",
            flush=True,
        )


def serve(port: Any) -> None:
    import torch.distributed  # noqa: F401

    raise_priority()
    store = connected(0, server=True)
    port.put(store.port)
    time.sleep(3600)


if __name__ == "__main__":
    main()
