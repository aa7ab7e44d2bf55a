"""Pausing, resuming, and the numbers kept about it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, cast

from . import _torch
from ._arguments import check_flag, check_seconds, check_tag, check_tags, shown
from ._errors import OutOfMemoryError, TmsError, from_code
from ._library import Library, encoded, load, named, texts
from ._module_calls import leave_if_over
from ._order import Order
from ._scope import Between, Scope

if TYPE_CHECKING:
    from ._order import Ordered


class TagStats(TypedDict):
    """Of one tag on one device. All sizes in bytes, times in seconds."""

    tag: str
    """As given to `region`; in a name with a backslash and x, each backslash is doubled."""
    segments: int
    """Allocations that exist, active or paused."""
    live_bytes: int
    """Bytes that were asked for, active and paused together."""
    physical_bytes: int
    """Device memory held."""
    paused_bytes: int
    """Device memory that pauses have given up and a resume takes again."""
    slack_bytes: int
    """Held beyond what was asked for: rounding, and freed parts of shared extents."""
    backup_bytes: int
    """Host memory, files or memory of other devices that hold contents."""
    host_bytes: int
    """Of that: pinned host memory."""
    disk_bytes: int
    """Of that: files."""
    pause_host_bytes: int
    """Pinned host memory that a pause would take beyond that."""
    pause_disk_bytes: int
    """Room for files that a pause would take beyond that."""
    without_contents_bytes: int
    """Of paused_bytes: memory that lost its contents, for lack of a backup or by discard=True."""
    pause_without_contents_bytes: int
    """Device memory that has no backup, which a pause would free without contents."""
    imported_bytes: int
    """Other processes' memory, mapped here now (CUDA IPC); in none of the above."""
    imported_paused_bytes: int
    """Other processes' memory that a pause has unmapped."""
    imported_lost_bytes: int
    """Of that, what its process has freed, perhaps by ending: it does not come back."""
    paused_since: float
    """When the last pause was done, as time.time() gives it; 0 while nothing is paused."""
    last_pause_seconds: float
    last_resume_seconds: float


class ProgressStats(TypedDict):
    """The progress of a running pause, resume or move."""

    operation: str
    """"pause", "resume" or "move"."""
    done_bytes: int
    """Contents copied so far."""
    total_bytes: int
    """Contents to be copied."""


class TotalStats(TypedDict):
    """The pauses or resumes of a device's memory so far. The figures never decrease."""

    count: int
    """Transitions that succeeded."""
    bytes: int
    """Device memory given back, or taken again."""
    contents_bytes: int
    """Contents saved, or brought back."""
    seconds: float
    """The time of those that succeeded."""


class DeviceStats(TypedDict):
    """The figures of one device. Sizes are in bytes, as in cudaMemGetInfo."""

    device: int
    uuid: str
    """"GPU-…", as in NVML and nvidia-smi -L; "" if the driver does not report it."""
    node: int
    """The NUMA node of the nearest host memory, or -1 if the driver does not know it."""
    total_bytes: int
    free_bytes: int
    live_bytes: int
    """Used by active allocations of regions, as asked for. Those of a tag may be paused."""
    slack_bytes: int
    """Held by regions beyond that."""
    pool_bytes: int
    """Held by pools of tms that took theirs from cudaMalloc."""
    backup_bytes: int
    """Used by contents of other devices that wait here (backup="peer")."""
    untracked_bytes: int
    """Used by anything else: CUDA itself, ordinary allocations, other processes."""
    tags: list[TagStats]
    peers: list[str]
    """The devices, by UUID, to which the process can copy its memory directly."""
    progress: ProgressStats | None
    """None while no pause or resume works on the device."""
    pauses: TotalStats
    resumes: TotalStats
    limit_bytes: int
    """The most that the process may have of the device (tms run --limit), or 0 for no limit."""
    limit_refused: int
    """How many allocations that has refused."""


class WaitingStats(TypedDict):
    """Things of one kind that the program gave up and that, for one reason, are not back yet."""

    what: str
    why: str
    count: int
    bytes: int
    """0 if unknown."""


class Stats(TypedDict):
    """Of the process."""

    version: str
    """The library's version."""
    started: bool
    """Whether the library has been needed yet; before that there are no devices."""
    devices: list[DeviceStats]
    waiting: list[WaitingStats]
    """Given up, and not back with the driver or the system yet."""
    everything: bool
    """Whether everything was paused for the driver's checkpoint (pause(everything=True)). Then the
    driver is not asked, and free_bytes, backup_bytes and untracked_bytes of the devices are 0."""
    capturing: bool
    """Whether a stream is being captured into a CUDA graph: pause and resume are refused."""
    host_available_bytes: int | None
    """Host memory that the machine and the control groups leave, or None if no limit is known."""
    disk_directory: str
    """Where files of backup="disk" go at the next pause; it may not be there yet."""
    pools: list[dict[str, Any]] | None
    """Of the pools that serve the program under TMS_INIT_POOL, as `allocator_stats` has them; None:
    none do."""


def pause(
    tag: str | Sequence[str] | None = None,
    *,
    discard: bool | Sequence[str] = False,
    everything: bool = False,
    timeout: float = 30,
) -> int:
    """Gives the physical memory of a tag back to the device; every address stays reserved.

    Waits for the devices' work first. When it returns, the memory is free for
    anyone. Reading or writing paused memory is an error until it is resumed; freeing it is fine.
    All or nothing: after an error the tags are wholly active or wholly paused with their contents,
    and the call can be repeated. Pausing what is paused does nothing, and neither does pausing a
    tag with which nothing was ever allocated; once there is a pausable allocation, a line on stderr
    says so.

    Args:
        tag: as given to `region`, or a list of tags: all of them are paused, or none. None: all
            tags, on all devices.
        discard: True, or some of the tags: their contents are lost, whatever backup the region
            has: nothing is copied, and host memory kept or prepared for them is given up.
        everything: the driver then takes the rest of this process on all devices: contexts,
            code, graphs, CUDA's own memory; a few MiB stay (driver 570 or later). All CUDA calls of
            the process, in every thread, wait until `resume`, or `tms resume PID` in another
            process. This starts the tms command. The driver also copies what PyTorch only caches,
            at 2 GiB/s or so: call `empty_cache` first.
        timeout: with everything: seconds for work on the devices, and calls of other threads, to
            end.

    Returns:
        How many bytes of device memory were freed, without what the driver took.

    Raises:
        BackupError: host memory is too short for the contents (backup="host"), or their files
            cannot be written (backup="disk").
        CaptureError: a stream is being captured into a CUDA graph.
        ForkedError: the process was forked after tms had been used.
        NotPreloadedError: libtms.so is not in this process.
        NotSupportedError: with everything: the driver cannot do it, or would lose the process:
            managed memory, memory shared with other processes, a part of a GPU (MIG).
        TmsError: anything else that CUDA reports. `code` is the cudaError_t: 100 without a driver,
            909 after the timeout, 600 when other processes have memory of the tag open and were not
            paused (10 s).
        TypeError, ValueError: everything with a tag or discard, discard of a tag that is not among
            the tags, or an argument that is not what it should be; nothing was paused.
    """
    tags, timeout = check_tags(tag), check_seconds("timeout", timeout)
    lost = tags
    if discard is not True:
        lost = None if discard is False else check_tags(discard, "discard")
    if check_flag("everything", everything) and (tags is not None or discard):
        raise ValueError(
            "everything=True pauses all tags with their contents: leave tag and discard out"
        )
    stray = set(lost or ()) - set(tags or ())
    if stray:
        raise ValueError(f"discard has tags that tag does not name: {', '.join(sorted(stray))}")
    library = load()
    if everything:
        code = library.c.tms_pause_everything(timeout)
        if code:
            raise from_code(code, "pausing everything", library.last_error)
        return library.last_bytes
    if tags is not None:
        kept = [each for each in tags if each not in (lost or ())]
        what = f"pausing {named(tags)}"
        freed = library.operate(what, library.c.tms_pause_tags, texts(kept), texts(lost or []))
    elif discard:
        freed = library.operate("discarding all tags", library.c.tms_discard, None)
    else:
        freed = library.operate("pausing all tags", library.c.tms_pause, None)
    if freed:
        _torch.look_again()
    return freed


def resume(
    tag: str | Sequence[str] | None = None,
    *,
    wait: float | None = None,
    order: Sequence[Ordered] | None = None,
) -> int:
    """Backs the addresses of a tag with device memory again, and restores kept contents.

    All or nothing: after an error the tags are wholly paused or wholly active with their contents,
    and the call can be repeated. Before it raises OutOfMemoryError, it gives back memory that
    PyTorch only caches, as `empty_cache` does, and tries once more. Resuming what is active does
    nothing, and neither does resuming a tag with which nothing was ever allocated, as for `pause`.

    While others keep the memory paused (`tms pause`, `tms lend`), the resume waits for their
    `tms resume`, as CUDA calls do.

    Args:
        tag: as given to `region`, or a list of tags. None means all tags, on all devices.
        wait: seconds for which the resume waits while device memory is short, until others have
            given some up. One line on stderr says which processes hold how much. Ctrl-C ends the
            wait; everything is then still paused. None: as `configure` or TMS_RESUME_WAIT says,
            by default 0. A number also bounds the wait for those who keep the memory paused.
        order: tensors or modules, such as the list of `first_runs`: the resume returns when all
            other memory and that of the first is back, and the rest follows in this order. A module
            has the tensors of all modules in it that are not in the list. While the rest is on its
            way, a listed module waits before its forward until its memory is back. Within that
            forward the thread goes on, and all other work of the program for the devices waits
            until all is back; CUDA graphs do so anywhere. A compiled or data-parallel module waits
            for all listed modules in it. Any other forward that uses memory of a module which comes
            later, without calling that module, ends the program's CUDA context (700). So list what
            runs as it runs, in eager mode, the model itself first. Segments of PyTorch's allocator
            that have a tensor of none of them come first. The program has to
            run under `tms run`. Else, or while its devices have work, all is back when the resume
            returns, and a line on stderr says why.

    Returns:
        How many bytes of device memory were mapped; with an order, until then.

    Raises:
        OutOfMemoryError: the devices have too little free memory.
        ContentsError: contents cannot be read back from disk, or, with TMS_VERIFY=1, are not what
            was saved; it names the tag and the segment. Everything is still paused. That segment
            can be freed; then the rest can be resumed.
        CaptureError, ForkedError, NotPreloadedError, TmsError: as for `pause`, and 800 when others
            keep the memory paused for longer than `wait`; the message names them. If a resume with
            an order fails after it has returned, the module that waits raises TmsError, and so do
            CUDA calls that wait; what is not back is paused with its contents, and `resume` brings
            it back.
        TypeError, ValueError: an argument is not what it should be; nothing was resumed.
    """
    tags = check_tags(tag)
    seconds = None if wait is None else check_seconds("wait", wait)
    ordered = None if order is None else Order(order)
    library = load()
    wait = default_wait(library) if seconds is None else seconds
    mapped = resume_within(library, tags, wait, _OTHERS, seconds, ordered)
    if ordered is not None:
        ordered.begin()
    leave_if_over()
    _torch.look_again()
    return mapped


def configure(*, resume_wait: float | None = None) -> None:
    """Changes settings of the process; what is None stays as it is.

    Args:
        resume_wait: seconds that every resume waits for memory which others are about to give back,
            unless it names its own time: `resume`, `paused`, `tms.distributed`, the vLLM plugin,
            torch_memory_saver, tms_resume in C, and `tms resume`. At first TMS_RESUME_WAIT, or 0.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
        TypeError, ValueError: resume_wait is no number of seconds.
    """
    if resume_wait is None:
        return
    seconds = check_seconds("resume_wait", resume_wait)
    if load().c.tms_set_resume_wait(seconds):
        raise ValueError(f"resume_wait must be a number of seconds, 0 or more, not {resume_wait!r}")


def default_wait(library: Library) -> float:
    """The seconds of `configure`."""
    return float(library.c.tms_get_resume_wait())


def resume_within(
    library: Library,
    tags: list[str] | None,
    wait: float,
    others: float,
    kept: float | None,
    order: Order | None = None,
) -> int:
    """Resumes a tag. It waits in parts, because no signal handler runs while the library waits.

    Args:
        others: seconds that other processes have to resume memory that is open here.
        kept: seconds to wait for those who keep this memory paused. None has no limit.
        order: of the memory; None: all at once.
    """
    start, pause, mapped, part, released = time.monotonic(), _FIRST_RETRY, 0, 0.0, False
    what, function, given = f"resuming {named(tags)}", library.c.tms_resume_within, None
    if tags is not None:
        function, given = library.c.tms_resume_tags, texts(tags)
    more: tuple[Any, ...] = ()
    if order is not None:
        function, more = library.c.tms_resume_in_order, order.arguments
    while True:
        try:
            return mapped + library.operate(what, function, given, part, *more)
        except OutOfMemoryError:
            # While the driver has the rest of the process, PyTorch's CUDA calls would wait.
            if not released and not library.stats["everything"]:
                released = True
                if _torch.release_cache():
                    continue
            left = start + wait - time.monotonic()
            if left <= 0:
                raise
            part = min(left, _LAST_RETRY)
        except TmsError as error:
            if error.code == _KEPT_PAUSED:
                if kept is None:  # the waits for memory begin after that
                    part, start = _LAST_RETRY, time.monotonic()
                    continue
                left = start + kept - time.monotonic()
                if left > 0:
                    part = min(left, _LAST_RETRY)
                    continue
            until = start + others
            if error.code != _NOT_READY or time.monotonic() >= until:
                raise
            mapped += library.last_bytes  # this process's own memory is back
            time.sleep(max(0.0, min(pause, until - time.monotonic())))
            pause = min(2 * pause, _LAST_RETRY)


_NOT_READY = 600
"""A cudaError_t number: another process's memory is paused in that process."""

_KEPT_PAUSED = 800
"""A cudaError_t number: others keep this process's memory paused."""

_OTHERS = 60.0
_FIRST_RETRY, _LAST_RETRY = 0.005, 0.25
"""The seconds between tries of a resume: doubled each time."""


def empty_cache() -> None:
    """Gives memory that PyTorch only caches back to the devices, that of regions included.

    torch.cuda.empty_cache() passes over the memory pools of regions, so memory of freed region
    tensors stays with their region: a pause that keeps contents copies it, and a resume brings it
    back. This function releases it, paused or not, and calls torch.cuda.empty_cache(). It leaves
    alone the pools of regions that some thread is in. Without PyTorch it does nothing.
    """
    _torch.release_cache()


def paused(tag: str | None = None) -> Scope:
    """Pauses a tag for the body and resumes it afterwards, even if the body raised.

    A context manager, and a decorator of functions, but not of `async def` and generators. The body
    must not use the paused memory. Contexts nest: a tag of which anything was paused on entry is
    not resumed on leaving.

    Args and Raises: as for `pause` on entering and `resume` on leaving. If the resume fails after
    the body raised, the resume's error is raised with the body's as its __context__.
    """
    if tag is not None:
        check_tag(tag)

    def enter() -> set[str] | None:
        before = _paused_tags()
        if before:  # perhaps a resume in an order is bringing it back
            pause([])  # which waits for its turn, and takes nothing
            before = _paused_tags()
        pause(tag)
        return before

    def leave(before: set[str] | None) -> None:
        if before is None:
            return
        if not before:
            resume(tag)
            return
        tags = (_paused_tags() or set()) if tag is None else {tag}
        resume(sorted(tags - before))

    return Between(f"tms.paused({'' if tag is None else repr(tag)})", enter, leave)


def _paused_tags() -> set[str] | None:
    """The tags that have paused memory, or None while the driver has the whole process."""
    found = stats()
    if found["everything"]:
        return None
    return {
        name_of(tag)
        for device in found["devices"]
        for tag in device["tags"]
        if tag["paused_bytes"] or tag["imported_paused_bytes"]
    }


def name_of(tag: TagStats) -> str:
    r"""A tag as given to `region`; bytes that are not UTF-8 are as in os.fsdecode."""
    if "\\x" not in tag["tag"]:
        return tag["tag"]

    def plain(escaped: re.Match[bytes]) -> bytes:
        return bytes.fromhex(escaped[1].decode()) if escaped[1] else b"\\"

    name = re.sub(rb"\\(?:x(..)|\\)", plain, tag["tag"].encode())
    return name.decode(errors="surrogateescape")


def prepare(tag: str | None = None, *, wait: bool = False) -> None:
    """Pins host memory ahead, so that the next pause runs at the speed of the link.

    For the active memory of regions with backup="host"; as many bytes of host memory as it has are
    held until the resume after that pause, or `trim`.

    Args:
        tag: as given to `region`. None means all tags, on all devices.
        wait: return when it is done. Otherwise it goes on in the background. A pause waits until
            that has ended. A failure is one line on stderr.

    Raises:
        BackupError: with wait: host memory is too short. Nothing is held then.
        ForkedError, NotPreloadedError, TmsError: as for `pause`.
    """
    name, wait = None if tag is None else check_tag(tag), check_flag("wait", wait)
    library = load()
    library.operate(f"preparing {named(name)}", library.c.tms_prepare, encoded(name), wait)


def serve() -> None:
    """Lets `tms ps`, `tms pause` and `tms resume` of the same user reach this process.

    As TMS_CONTROL=1 does from the first pausable allocation on: the process listens on a Unix
    socket in a directory that is the user's alone. A thread of the library serves it; a child of
    fork() has none. Calling it again does nothing.

    Raises:
        ForkedError: the process was forked after tms had been used.
        NotPreloadedError: libtms.so is not in this process.
        TmsError: the socket cannot be made (code 304), or there is no CUDA driver (100): the
            message says why.
    """
    library = load()
    library.operate("listening", library.c.tms_serve)


def trim() -> None:
    """Gives back the host memory that no paused memory needs.

    That is what `prepare` pinned, and what stays after a resume (TMS_RETAIN_CPU_BACKUP). Returns
    when the operating system has it back.

    Raises:
        ForkedError, NotPreloadedError, TmsError: as for `pause`.
    """
    library = load()
    library.operate("trimming all tags", library.c.tms_trim)


def set_disk_backup_dir(path: str | os.PathLike[str]) -> None:
    """Says where the files of backup="disk" go from the next pause on, for the whole process.

    A missing directory is made. On a tmpfs the files take memory, and a line on stderr says so.
    Files have no name, and end with the process, however it ends.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
        TypeError, ValueError: no path, an empty one, or one with a NUL character.
    """
    if not isinstance(path, (str, bytes, os.PathLike)):
        raise TypeError(f"path must name a directory, not {shown(path)}")
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        name = b""
    if not name or b"\0" in name:
        raise ValueError(f"path must name a directory, not {shown(path)}")
    load().c.tms_set_disk_backup_dir(os.path.abspath(name))


def last_error() -> str:
    """The library's text for the calling thread's last failure in it, "" if there was none.

    Exceptions of tms have that text already; this is for what failed elsewhere, such as a
    cudaMalloc in a region that returned an error.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return load().last_error


def stats() -> Stats:
    """The numbers kept per device and tag; see `Stats`.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
    """
    return cast(Stats, load().stats)
