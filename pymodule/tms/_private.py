"""Looks up the parts of PyTorch that this package uses beyond its documented interface."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from ._errors import NotSupportedError

NAMES = "2.6 to 2.11, 2.14 and 2.15"
"""Versions of PyTorch that have all of it (scripts/torch-versions/check.py)."""


def private(torch: Any, name: str) -> Any:
    """Returns this PyTorch's attribute of a name such as "_C._cuda_releasePool".

    Raises:
        NotSupportedError: nothing.
    """
    found = torch
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is None:
        raise _missing(torch, f"torch.{name}")
    return found


def setter(torch: Any, allocator: Any, name: str) -> Any:
    """A function of what torch._C._cuda_customAllocator made; some versions add _fn to all names.

    Raises:
        NotSupportedError: it has none.
    """
    found = getattr(allocator, name, None) or getattr(allocator, f"{name}_fn", None)
    if found is None:
        raise _missing(torch, f"{name} for allocators")
    return found


class Segment(NamedTuple):
    """A piece of device memory that PyTorch's allocator got from the device. Sizes in bytes."""

    pool: tuple[int, int]
    """The id of a torch.cuda.MemPool; (0, 0): of none."""
    total: int
    active: int
    """In use."""
    expandable: bool


def segments_of(torch: Any, pool: Any) -> list[Segment]:
    """The segments of a torch.cuda.MemPool, or all where PyTorch cannot tell those alone."""
    if hasattr(pool, "snapshot") and _takes_traces(pool.snapshot):
        return segments(torch, pool.snapshot(include_traces=False))
    return segments(torch)


def segments(torch: Any, snapshot: Any = None) -> list[Segment]:
    """All segments that exist. (torch.cuda.memory_snapshot)

    Raises:
        NotSupportedError: this PyTorch says less about them.
    """
    try:
        return [
            Segment(
                tuple(entry["segment_pool_id"]),
                entry["total_size"],
                entry["active_size"],
                entry["is_expandable"],
            )
            for entry in (torch.cuda.memory_snapshot() if snapshot is None else snapshot)
        ]
    except KeyError as error:
        raise _missing(torch, f"{error.args[0]} in torch.cuda.memory_snapshot()") from None


def _takes_traces(snapshot: Any) -> bool:
    return "include_traces" in snapshot.__code__.co_varnames


class Block(NamedTuple):
    """What PyTorch's allocator has made of a part of a segment. Sizes in bytes."""

    pool: tuple[int, int]
    """As a segment's."""
    address: int
    size: int
    free: bool
    """No tensor has it."""


def blocks(torch: Any) -> Iterator[Block]:
    """All blocks of all segments. (torch.cuda.memory_snapshot)

    Raises:
        NotSupportedError: this PyTorch says less about them.
    """
    snapshot = torch.cuda.memory_snapshot
    traces = {"include_traces": False} if _takes_traces(snapshot) else {}
    try:
        for entry in snapshot(**traces):
            address = entry["address"]
            for block in entry["blocks"]:
                free = block["state"] != "active_allocated"
                yield Block(tuple(entry["segment_pool_id"]), address, block["size"], free)
                address += block["size"]
    except KeyError as error:
        raise _missing(torch, f"{error.args[0]} in torch.cuda.memory_snapshot()") from None


def settings(torch: Any) -> str:
    """The settings of PyTorch's allocator: those in force, else those of the environment."""
    try:
        found = torch.cuda.memory._snapshot()["allocator_settings"]
        for variable in _VARIABLES:
            if found.get(variable) is not None:
                return str(found[variable])
    except (AttributeError, KeyError):
        pass
    return next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")


def set_settings(torch: Any, text: str) -> None:
    """Makes `text` the settings of PyTorch's allocator; others get their defaults.

    Raises:
        NotSupportedError: this PyTorch has no function for it.
    """
    general = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (general or private(torch, "cuda.memory._set_allocator_settings"))(text)


_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the first wins, as in PyTorch


def _missing(torch: Any, what: str) -> NotSupportedError:
    return NotSupportedError(
        f"PyTorch {torch.__version__} has no {what}, which tms needs. Use version 2.11, which was "
        f"tried on GPUs; versions {NAMES} have all names."
    )
