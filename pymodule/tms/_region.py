"""Regions: which of a thread's allocations are pausable."""

from __future__ import annotations

from typing import Any

from . import _torch
from ._arguments import Backup, check_backup, check_incremental, check_tag, check_text
from ._library import Library
from ._scope import Scope, ThreadScope


def region(
    tag: str = "default", backup: Backup = None, *, incremental: bool | None = None
) -> Scope:
    """Makes the device memory that this thread allocates in the body pausable.

    A context manager, and a decorator of functions, but not of `async def` and generators; the same
    object can be used again and again. Regions nest: the innermost one decides, and leaving it,
    even by an exception, restores what held before. Other threads are not affected. That includes
    PyTorch's autograd threads, so gradients that backward() allocates belong to no region.

    A region belongs to its thread, not to a task, greenlet or generator, and must be left on that
    thread, after those that were entered in it. Otherwise leaving it raises RuntimeError. What was
    entered later then keeps holding until it is left, and after that what held before all of them
    comes back. A thread whose region was left on another thread stays in it until it next enters or
    leaves a region, or ends.

    Args:
        tag: a name under which `pause` and `resume` find the memory. Not empty, no NUL.
        backup: None: a pause loses the contents, and the memory reads as fresh memory
            (unspecified bytes) after the resume. "host": a pause copies them to host memory, as
            many bytes as were allocated, and the resume copies them back. "sparse": as "host", but
            the GPU finds the blocks of 2 MiB that are zero by their hash: they take no host memory,
            and the resume fills them with zeros. "disk": as "host", but to
            files that only this user can read, one for each paused allocation, in the directory
            that TMS_DISK_BACKUP_DIR or `set_disk_backup_dir` names. "peer": as "host", but to the
            free memory of other GPUs, "peer:N": of GPU N, over NVLink where there is some; contents
            without peer access or room there go to host memory, and a line on stderr says so.
        incremental: with backup="host": the host copy is kept after a resume, and the next pause
            copies only those blocks of 2 MiB whose contents have changed, by a 128-bit hash
            computed on the GPU. None: as TMS_INIT_ENABLE_INCREMENTAL_BACKUP says.

    Raises:
        TypeError, ValueError: bad arguments, or what can't be decorated.
        NotPreloadedError: libtms.so is not in this process.
        NotSupportedError: PyTorch's allocator is set up in a way that can't be paused
            (backend:cudaMallocAsync, a pluggable allocator), or has no memory pools (before
            PyTorch 2.6).

    With PyTorch, import it before entering a region. Its caching allocator hands out memory from
    segments that it got earlier, so tensors of a region are served from a `torch.cuda.MemPool`
    kept for each (tag, backup), on whichever device is current at each allocation. Therefore:

    - a region tensor that is freed goes back to its pool's cache, not to the device; a later
      tensor of the same region can reuse it, a pause takes it along, and a resume brings it back.
      torch.cuda.empty_cache() passes over it; `tms.empty_cache` gives it back to the device;
    - a region that is entered while its tag is paused gets another pool, and so does the thread
      that pauses the tag that it is in, or everything under TMS_INIT_ENABLE; other threads that
      allocate then need a region or `disable` of their own;
    - a `torch.cuda.MemPool` of the program's own is as outside all regions, also in a region, and a
      region within torch.cuda.use_mem_pool does nothing: a warning says so once;
    - while any thread is inside a region, torch.cuda.empty_cache() releases nothing, and PyTorch
      leaves out its own retry after an out-of-memory error: call `tms.empty_cache` before
      entering a region if memory is short (c10/cuda/CUDACachingAllocator.cpp,
      `release_cached_blocks`);
    - while the current stream is being captured into a CUDA graph, the graph's own pool serves it,
      and the memory that the pool takes from the device during the capture is pausable;
    - with expandable_segments:True PyTorch maps memory itself, with driver functions that
      libtms.so hands it; what it maps for a region's pool belongs to the region. Memory of tensors
      that were sent to another process is paused together with that process (TMS_SHAREABLE=1), or
      stays as it is from then on, so that a pause frees nothing of it. And `tms.empty_cache` gives
      back a region's cache only when no tensor is left in its pool;
    - before PyTorch 2.8 pools are not per thread: other threads' tensors go into the pool too.
    """
    kind = check_backup(backup)
    if incremental is not None:
        check_incremental(incremental, kind)
    check_tag(tag, without="'default'")

    def is_incremental(library: Library) -> bool:
        if incremental is not None:
            return incremental
        return library.incremental_by_default and kind == "host"

    return ThreadScope(
        f"tms.region({tag!r})",
        lambda library: _torch.enter((tag, kind, is_incremental(library))),
        lambda library: pausable(tag, kind, incremental=is_incremental(library)),
    )


def pausable(tag: str, backup: Backup, *, incremental: bool) -> dict[str, Any]:
    """A thread's settings for pausable memory, as attributes of `Library`."""
    return {
        "tag": check_text("tag", tag),
        "backup": (backup or "none").encode(),
        "incremental": incremental,
        "active": True,
    }


def disable() -> Scope:
    """Makes the device memory that this thread allocates in the body ordinary, not pausable.

    A context manager, and a decorator, as `region`; for temporary memory inside a region. Outside
    any region it changes nothing.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return ThreadScope(
        "tms.disable()", lambda library: _torch.enter(None), lambda library: {"active": False}
    )


def exclude() -> Scope:
    """Takes this thread out of all regions for the body, even out of those that it enters there.

    A context manager, and a decorator, as `region`; for calls into libraries that must keep their
    buffers, such as those that hand them to other processes or to a network card. Like `disable` it
    makes PyTorch's tensors ordinary too, from another pool than the region's. A region entered
    within `disable` counts; one entered within `exclude` does nothing. TMS_EXCLUDE in the
    environment does this for whole libraries, in every thread: file names, with ":" between them
    (libnccl.so.2:libfoo.so).

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return ThreadScope(
        "tms.exclude()", lambda library: _torch.enter(None), lambda library: {"excluded": True}
    )
