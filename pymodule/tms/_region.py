"""Regions: which of a thread's allocations are pausable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import _torch
from ._arguments import Backup, check_backup, check_incremental, check_tag, peer_of
from ._library import Library, load

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager


def region(
    tag: str = "default", backup: Backup = None, *, incremental: bool | None = None
) -> _GeneratorContextManager[None]:
    """Makes the device memory that this thread allocates in the body pausable.

    A context manager, and a decorator. Regions nest: the innermost one decides, and leaving it,
    also by an exception, restores what held before; enter and leave on the same thread. Other
    threads are not affected, which includes PyTorch's autograd threads: gradients that backward()
    allocates belong to no region.

    Args:
        tag: a name under which `pause` and `resume` find the memory. Not empty, no NUL.
        backup: None: the contents are lost by a pause, and the memory reads as fresh memory
            (unspecified bytes) after the resume. "host": a pause copies them to host memory, as
            many bytes as were allocated, and the resume copies them back. "disk": likewise to
            files that only this user can read, one for each paused allocation, in the directory
            that TMS_DISK_BACKUP_DIR or `set_disk_backup_dir` names. "peer": likewise to the
            free memory of other GPUs, "peer:N": of GPU N, over NVLink where there is some; what
            finds no peer access or no room there goes to host memory, and a line on stderr says
            so.
        incremental: with backup="host": the host copy is kept after a resume, and the next pause
            copies only those blocks of 2 MiB whose contents have changed, which a 128-bit hash
            computed on the GPU tells. None: as TMS_INIT_ENABLE_INCREMENTAL_BACKUP says.

    Raises:
        TypeError, ValueError: bad arguments.
        NotPreloadedError: libtms.so is not in this process.
        NotSupportedError: PyTorch's allocator is set up in a way that can't be paused
            (backend:cudaMallocAsync, a pluggable allocator), or has no memory pools (before
            PyTorch 2.6).

    With PyTorch, import it before entering a region. Its caching allocator hands out memory from
    segments that it got earlier, so tensors of a region are served from a `torch.cuda.MemPool`
    kept for each (tag, backup), on whichever device is current at each allocation. It follows
    that:

    - a region tensor that is freed goes back to its pool's cache, not to the device; a later
      tensor of the same region can reuse it, a pause takes it along, and a resume brings it back.
      torch.cuda.empty_cache() passes it over; `tms.empty_cache` gives it to the device;
    - while any thread is inside a region, torch.cuda.empty_cache() releases nothing, and PyTorch
      leaves out its own retry after an out-of-memory error: call `tms.empty_cache` before
      entering a region if memory is short (c10/cuda/CUDACachingAllocator.cpp,
      `release_cached_blocks`);
    - while the current stream is being captured into a CUDA graph, the graph's own pool is used,
      and the memory that it takes from the device meanwhile is pausable;
    - with expandable_segments:True PyTorch maps memory itself, with driver functions that
      libtms.so hands it; what it maps for a region's pool is the region's. Memory of tensors that
      were sent to another process stays as it is from then on: a pause frees nothing of it; and
      `tms.empty_cache` gives a region's cache back only when no tensor is left in its pool;
    - before PyTorch 2.8 pools are not per thread: other threads' tensors go into the pool too.
    """
    kind = check_backup(backup)
    if incremental is not None:
        check_incremental(incremental, kind)
    return _region(check_tag(tag), kind, incremental)


@contextlib.contextmanager
def _region(tag: str, backup: Backup, incremental: bool | None) -> Iterator[None]:
    library = load()
    if incremental is None:
        incremental = library.incremental_by_default and backup == "host"
    with _torch.routed_to((tag, backup, incremental), plain_by_default=not library.active):
        before = _Settings.read(library)
        _Settings(
            True, tag.encode(), backup == "host", backup == "disk", incremental, peer_of(backup)
        ).write(library)
        try:
            yield
        finally:
            before.write(library)


def disable() -> _GeneratorContextManager[None]:
    """Makes the device memory that this thread allocates in the body ordinary, not pausable.

    A context manager, and a decorator; for temporary memory inside a region. Outside any region
    it changes nothing.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return _disable()


@contextlib.contextmanager
def _disable() -> Iterator[None]:
    library = load()
    before = library.active
    with _torch.routed_to(None, plain_by_default=not before):
        library.active = False
        try:
            yield
        finally:
            library.active = before


def exclude() -> _GeneratorContextManager[None]:
    """Takes this thread out of all regions for the body, also out of those that it enters there.

    A context manager, and a decorator; for calls into libraries that must keep their buffers, such
    as those that hand them to other processes or to a network card. Like `disable` it makes
    PyTorch's tensors ordinary too, from another pool than the region's. A region entered within
    `disable` counts; one entered within `exclude` does nothing. TMS_EXCLUDE in the environment does
    so for whole libraries, in every thread: file names, with ":" between them
    (libnccl.so.2:libfoo.so).

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return _exclude()


@contextlib.contextmanager
def _exclude() -> Iterator[None]:
    library = load()
    before = library.excluded
    with _torch.routed_to(None, plain_by_default=not library.active):
        library.excluded = True
        try:
            yield
        finally:
            library.excluded = before


@dataclass(frozen=True)
class _Settings:
    """A thread's settings in the library."""

    active: bool
    tag: bytes
    cpu_backup: bool
    disk_backup: bool
    incremental: bool
    peer: int | None

    @classmethod
    def read(cls, library: Library) -> _Settings:
        return cls(
            library.active,
            library.tag,
            library.cpu_backup,
            library.disk_backup,
            library.incremental,
            library.peer,
        )

    def write(self, library: Library) -> None:
        library.tag = self.tag
        library.cpu_backup = self.cpu_backup
        library.disk_backup = self.disk_backup
        library.incremental = self.incremental
        library.peer = self.peer
        library.active = self.active
