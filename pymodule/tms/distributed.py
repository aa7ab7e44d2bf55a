"""One pause or resume over all ranks of a torch.distributed group: every rank does it, or none.

    import tms.distributed as together

    together.pause("weights")  # on every rank, at the same point of the program
    together.resume("weights")

Every rank of the group calls every function here, in the same order, like a collective. But the
ranks meet over the group's store (TCPStore), whatever its backend, so a dead rank is noticed and
named. docs/distributed.md has the promises for each failure. Importing this module does not need
PyTorch; calling it does.
"""

from __future__ import annotations

import sys
import zlib
from typing import TYPE_CHECKING, Any

from ._arguments import check_tag, shown
from ._errors import GroupError, NotSupportedError
from ._kept_together import move
from ._kept_versions import Following
from ._meeting import Meeting, StoreLost
from ._private import private
from ._scope import Between, Scope
from ._together import Part, check_timeout, error, failure, module

if TYPE_CHECKING:
    import torch.distributed

__all__ = ["GroupError", "advance", "back", "pause", "paused", "resume"]

_TIMEOUT = 60.0


def pause(
    tag: str | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = _TIMEOUT,
) -> int:
    """Pauses a tag on every rank of a group, or on none.

    First every rank checks that no stream is being captured and that the work on its devices ends,
    and names the host memory and disk space that it needs. The sum for all ranks of a machine must
    fit there. Then all ranks pause (`tms.pause`). When a rank cannot, fails, or does not answer in
    time, all others resume what they have paused.

    Args:
        tag: as given to `tms.region`, or None for all tags. All ranks give the same tag.
        group: a process group that this process is in, by default the default group.
        timeout: seconds that this rank waits for the others to come to this call, and again,
            when it is done, for the others to be done.

    Returns:
        How many bytes of device memory were freed, on this rank.

    Raises:
        GroupError: on all living ranks, with one text: the failed rank, its host and the cause.
            All are as before, unless the message says otherwise.
        NotSupportedError: there is no PyTorch, or its group has no store (as with MPI).
        ValueError: this process is not in the group, there is no group, or the timeout is wrong.
    """
    return _transact("pause", tag, group, timeout)


def resume(
    tag: str | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = _TIMEOUT,
) -> int:
    """Resumes a tag on every rank of a group, or on none.

    First every rank checks that its devices have enough free memory, and for that gives back what
    PyTorch only caches. When a rank then fails, all others pause again what they have resumed; that
    loses no contents that the first pause had kept.

    Args and Raises: as for `pause`.

    Returns:
        How many bytes of device memory were mapped, on this rank.
    """
    return _transact("resume", tag, group, timeout)


def paused(
    tag: str | None = None,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = _TIMEOUT,
) -> Scope:
    """Pauses a tag on every rank for the body and resumes it afterwards, even if the body raised.

    A context manager, and a decorator of functions. All ranks must enter it, and leave it.

    Args and Raises: as for `pause` on entering and `resume` on leaving.
    """
    if tag is not None:
        check_tag(tag)
    check_timeout(timeout)
    return Between(
        f"tms.distributed.paused({'' if tag is None else repr(tag)})",
        lambda: pause(tag, group, timeout),
        lambda freed: resume(tag, group, timeout),
    )


def advance(
    following: Following,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = _TIMEOUT,
) -> int:
    """Maps the newest version of each rank's set (`tms.Following.advance`) on every rank, or none.

    Every rank first checks that no stream is being captured and that the work on its devices ends.
    Each rank calls between the same two steps, and follows a set of its own.

    Args:
        following: what this rank's `tms.kept(...).follow(...)` returned.
        group, timeout: as for `pause`.

    Returns:
        The number of the version that is mapped on this rank.

    Raises:
        GroupError: on all living ranks, with one text. All have the versions that they had, unless
            it says that a set stays at another. What a driver did not map again is paused; the text
            says so, and `tms.resume` maps it. If a rank failed after the checks, what an earlier
            advance had kept for `back` may be gone.
        NotSupportedError, ValueError: as for `pause`.
    """
    _check_following(following)
    timeout = check_timeout(timeout)
    return move("advance", [following], _meeting(group), timeout)


def back(
    following: Following,
    group: torch.distributed.ProcessGroup | None = None,
    timeout: float = _TIMEOUT,
) -> int:
    """Maps the version before again (`tms.Following.back`) on every rank, or on none.

    Args, Returns and Raises: as for `advance`; after an error the version before is still kept.
    """
    _check_following(following)
    timeout = check_timeout(timeout)
    return move("back", [following], _meeting(group), timeout)


def _check_following(following: object) -> None:
    if not isinstance(following, Following):
        asked = f"not {shown(following)}"
        raise TypeError(f"following must be what tms.kept(...).follow(...) returned, {asked}")


def _transact(operation: str, tag: str | None, group: Any, timeout: float) -> int:
    tag = None if tag is None else check_tag(tag)
    timeout = check_timeout(timeout)
    meeting = _meeting(group)
    return meeting.transact(Part(operation, tag, meeting.name, timeout), timeout)


_meetings: dict[tuple[object, ...], tuple[object, Meeting]] = {}
"""With the store that the group had, because a group may be made again over another store."""


def _meeting(group: Any) -> Meeting:
    distributed = module("torch.distributed", "tms.distributed")
    if not distributed.is_available() or not distributed.is_initialized():
        raise ValueError("there is no process group: call torch.distributed.init_process_group")
    group = distributed.group.WORLD if group is None else group
    rank = distributed.get_rank(group)
    if rank < 0:
        raise ValueError("this process is not in the group, and only its ranks can make the call")
    names = [int(name) for name in distributed.get_process_group_ranks(group)]
    return meeting_of(str(group.group_name), rank, names)


def meeting_of_engine(label: str, workers: int) -> Meeting | None:
    """Where the workers of this process's engine meet; None if it is the only one."""
    distributed: Any = sys.modules.get("torch.distributed")
    if workers < 2 or distributed is None or not distributed.is_initialized():
        return None
    own = distributed.get_rank()
    first = own - own % workers  # other engines of a data-parallel group come beside
    return meeting_of(label, own - first, [*range(first, first + workers)])


def meeting_of(label: str, rank: int, names: list[int]) -> Meeting:
    """Where some ranks of the default group meet.

    Args:
        label: the same on all of them; other ranks, and other purposes, have others.
        rank: this process's place among them.
        names: their numbers in the default group.

    Raises:
        NotSupportedError: the default group has no store.
    """
    distributed = module("torch.distributed", "tms.distributed")
    torch = module("torch", "tms.distributed")
    store = private(torch, "distributed.distributed_c10d._get_default_store")()
    if store is None:
        raise NotSupportedError("the process group has no store to meet over: use gloo or nccl")
    place = (label, *names)
    known, meeting = _meetings.get(place, (None, None))
    if meeting is None or known is not store:
        prefix = f"tms/{label}/{zlib.crc32(repr(names).encode())}"
        own = distributed.PrefixStore(prefix, _own(store, names[rank]))
        if meeting is None:
            meeting = Meeting(own, rank, names)
        meeting.store = own  # a new group may have the same store, and so its calls
        _meetings[place] = store, meeting
    return meeting


def _own(store: Any, name: int) -> Any:
    """The same store on a connection of its own: a connection serves one waiter at a time."""
    try:
        store.check(["tms"])  # a clone of a lost store would try to connect for minutes
        return store.clone() if hasattr(store, "clone") else store  # in PyTorch 2.7 and later
    except RuntimeError as lost:
        why = StoreLost(f"the group's store does not answer ({lost})")
        raise error("meeting", [failure(name, why)], "nothing was changed") from lost
