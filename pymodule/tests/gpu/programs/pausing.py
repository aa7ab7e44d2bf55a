"""What ranks with each other's memory open have in common: all of them pause, between collectives.

Their programs are called with rank, count, devices, cycles and meeting.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any, Callable

import torch
import torch.distributed as dist

import tms
import tms.distributed as together
from tms._library import load

rank, count, devices, cycles = (int(each) for each in sys.argv[1:5])
torch.cuda.set_device(rank % devices)
dist.init_process_group("gloo", init_method=sys.argv[5], rank=rank, world_size=count)


def all_here() -> None:
    torch.cuda.synchronize()
    dist.barrier()


def free() -> int:
    return int(torch.cuda.mem_get_info()[0])


def pauses(
    tag: str,
    right: Callable[[int], bool],
    kept: Callable[[int], bool],
    while_paused: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Pauses all ranks after each cycle of collectives, which are right, and returns figures.

    Args:
        kept: whether the contents after a resume are those of a cycle.
    """
    seconds: dict[str, list[float]] = {"pause": [], "resume": []}
    freed, own = [], 0
    for cycle in range(cycles):
        assert right(cycle), cycle
        all_here()
        before, began = free(), time.perf_counter()
        dist.barrier()
        own = together.pause(tag) if cycle % 2 else tms.pause(tag)
        seconds["pause"].append(time.perf_counter() - began)
        dist.barrier()
        freed.append(free() - before)
        while_paused()
        dist.barrier()
        began = time.perf_counter()
        back = together.resume() if cycle % 2 else tms.resume()
        seconds["resume"].append(time.perf_counter() - began)
        assert own == back, (own, back)
        assert kept(cycle), cycle
        all_here()
    # All of it goes, that of both where they share a GPU.
    assert min(freed) >= 0.9 * own * (count // devices), (min(freed), own)
    took = {name: round(statistics.median(each) * 1000, 1) for name, each in seconds.items()}
    figures = {"ranks": count, "devices": devices, "cycles": cycles, "bytes": own}
    return {**figures, "milliseconds": took}


def refused_alone(tag: str) -> str:
    """What the first rank is told that pauses without the others; "" on the others."""
    try:
        if rank == 0:
            load().pause(tag, 0.3)
    except tms.TmsError as error:
        return str(error)
    return ""
