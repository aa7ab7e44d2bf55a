"""Several sets, of one process or of all ranks of a group, that go to another version as one."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from . import _control
from ._errors import TmsError
from ._kept_versions import Following
from ._meeting import Meeting
from ._together import CAPTURED, Part, error, failure


class Moves(Part):
    """One rank's share of an advance, or of a return, of all sets that it follows."""

    as_before = "all have the versions that they had"

    def __init__(
        self,
        operation: str,
        rank: int,
        timeout: float,
        sets: Sequence[Following],
        forbid: Callable[[], None] | None = None,  # raises what forbids it
    ) -> None:
        super().__init__(operation, None, rank, timeout)
        self.sets = sets
        self._forbid = forbid
        self._moved: list[tuple[Following, ctypes.c_int]] = []

    def doing(self, count: int, noun: str) -> str:
        what = "advancing" if self.operation == "advance" else "going back"
        return f"{what} on {count} {noun}{'s' if count > 1 else ''}"

    def check(self) -> dict[str, Any]:
        """As `Part.check`. All ranks must find the same versions, so each votes with its own."""
        if self.operation == "advance" and self.sets:
            with contextlib.suppress(TmsError):  # `_needs` says why
                self.tag = _text(one.newest for one in self.sets)
        return super().check()

    def _needs(self) -> dict[str, Any]:
        if self._forbid:
            self._forbid()
        stats = _control.stats()
        if not self.sets:
            raise TmsError("it follows no set")
        if stats["everything"]:
            raise TmsError("the whole process is paused (pause(everything=True)): resume it first")
        if stats["capturing"]:
            raise TmsError("a stream is being captured into a CUDA graph", code=CAPTURED)
        for one in self.sets:
            _ = one.newest if self.operation == "advance" else one.before
        self._wait_for_devices({device["device"] for device in stats["devices"]})
        return {}

    def do(self) -> int:
        for one in self.sets:
            moved = ctypes.c_int()  # filled in even if an interrupt comes right after the call
            self._moved.append((one, moved))
            one.move(self.operation, moved)
        if self.operation == "advance" and _text(one.version for one in self.sets) != self.tag:
            raise TmsError("a trainer has completed another version at this moment: call again")
        return self.sets[0].version

    def take_back(self) -> None:
        """Moves all sets back that have moved. Raises TmsError at the end if some cannot."""
        stuck = []
        while self._moved:
            one, moved = self._moved.pop()
            if not moved.value:
                continue
            try:
                one.move("back")
                if self.operation == "advance":  # what a return has left is still the one before
                    one.settle()
            except TmsError as why:
                stuck.append(f"set {one.name!r} stays at version {one.version}: {why.cause or why}")
        if stuck:
            raise TmsError("; ".join(stuck))

    def finish(self) -> None:
        for one in self.sets:
            one.finish(self.operation)


def _text(numbers: Iterable[int]) -> str:
    return "to version " + " and ".join(map(str, numbers))


def move(
    operation: str,
    sets: Sequence[Following],
    meeting: Meeting | None,
    timeout: float,
    forbid: Callable[[], None] | None = None,
) -> int:
    """Makes all sets of all ranks move, or none; returns the version of this rank's first set.

    Args:
        forbid: raises what forbids it on this rank.

    Raises:
        GroupError: on every rank, with the same text. All have the versions that they had, unless
            the message says that a set stays at another. What the driver did not map again is
            paused; the message says so, and a resume maps it. What an earlier advance had kept for
            a return may be gone after an advance.
        TmsError: the same, where there is no meeting.
    """
    part = Moves(operation, 0 if meeting is None else meeting.name, timeout, sets, forbid)
    if meeting is not None:
        version = meeting.transact(part, timeout)
    else:
        refused = part.check()["failures"]
        if refused:
            raise error(part.doing(1, "rank"), refused, "all are as before")
        try:
            version = part.do()
        except BaseException as why:
            state = part.as_before
            try:
                part.take_back()
            except TmsError as own:
                state = f"not all of it can be taken back ({own})"
            if not isinstance(why, Exception):
                raise
            raise error(part.doing(1, "rank"), [failure(part.rank, why)], state) from why
    part.finish()
    return version
