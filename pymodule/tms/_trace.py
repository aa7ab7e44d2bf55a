"""Traces of allocations, from what PyTorch has recorded."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from typing import Any


def trace_from_memory_history(snapshot: Mapping[str, Any], file: str | os.PathLike[str]) -> int:
    """Writes PyTorch's memory history as a trace, for tms replay; returns the number of lines.

    The history is that of tensors, whichever memory PyTorch's allocator served them from:

        torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
        step()
        tms.trace_from_memory_history(torch.cuda.memory._snapshot(), "step.csv")

    A tensor is freed where the program freed it ("free_requested"), even if PyTorch then held it
    back for another stream. What was allocated before the recording began is left out. Threads are
    not in the history, so all lines have thread 0; all devices are in one trace, by time.

    Args:
        snapshot: what torch.cuda.memory._snapshot() returned, or _dump_snapshot() wrote (a pickle).
        file: is replaced. Its format is RMM's: Thread,Time,Action,Pointer,Size,Stream.

    Raises:
        ValueError: there is no history in the snapshot. Nothing is written.
        OSError: the file can't be written.
    """
    devices = snapshot.get("device_traces")
    if not devices or not any(devices):
        raise ValueError(
            "the snapshot has no history: call torch.cuda.memory._record_memory_history() before "
            "what is to be traced"
        )
    lines = list(_lines(sorted((entry for device in devices for entry in device), key=_time)))
    with open(file, "w", encoding="ascii") as out:
        out.write("Thread,Time,Action,Pointer,Size,Stream\n")
        out.writelines(lines)
    return len(lines)


def _time(entry: Mapping[str, Any]) -> int:
    """Microseconds since 1970; 0 in histories of versions that did not record it."""
    return int(entry.get("time_us", 0))


def _lines(entries: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    live: dict[int, int] = {}
    for entry in entries:
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "alloc":
            live[address] = size
            yield _line(entry, "allocate", address, size)
        elif action == "free_requested" and address in live:
            yield _line(entry, "free", address, live.pop(address))
        elif action == "oom":
            yield _line(entry, "allocate failure", 0, size)


def _line(entry: Mapping[str, Any], action: str, address: int, size: int) -> str:
    time = datetime.datetime.fromtimestamp(_time(entry) / 1e6)
    return f"0,{time:%H:%M:%S.%f},{action},{address:#x},{size},{entry['stream']:#x}\n"
