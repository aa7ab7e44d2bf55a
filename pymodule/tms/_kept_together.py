"""Several sets, of one process or of all ranks of a group, that go to another version as one."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from . import _control
from ._errors import TmsError
from ._kept_versions import Following
from ._meeting import Meeting
from ._together import CAPTURED, Part, error, failure


class Moves(Part):
    """One rank's share of an advance, or of a return, of all sets that it follows."""

    def __init__(
        self, operation: str, rank: int, timeout: float, sets: Sequence[Following]
    ) -> None:
        super().__init__(operation, None, rank, timeout)
        self.sets = sets
        self._moved: list[Following] = []

    def doing(self, count: int, noun: str) -> str:
        what = "advancing" if self.operation == "advance" else "going back"
        return f"{what} on {count} {noun}{'s' if count > 1 else ''}"

    def _needs(self) -> dict[str, Any]:
        stats = _control.stats()
        if not self.sets:
            raise TmsError("it follows no set")
        if stats["everything"]:
            raise TmsError("the whole process is paused (pause(everything=True)): resume it first")
        if stats["capturing"]:
            raise TmsError("a stream is being captured into a CUDA graph", code=CAPTURED)
        if self.operation == "advance":  # all ranks must find the same
            self.tag = self._newest()
        self._wait_for_devices({device["device"] for device in stats["devices"]})
        return {}

    def _newest(self) -> str:
        return "to version " + " and ".join(str(one.newest) for one in self.sets)

    def do(self) -> int:
        for one in self.sets:
            before = one.version
            if one.move(self.operation) != before:
                self._moved.append(one)
        if self.operation == "advance" and self._newest() != self.tag:
            raise TmsError("a trainer has completed another version in this moment: call again")
        return self.sets[0].version

    def take_back(self) -> None:
        while self._moved:
            one = self._moved.pop()
            one.move("back")
            one.finish("back")

    def finish(self) -> None:
        for one in self.sets:
            one.finish(self.operation)


def move(operation: str, sets: Sequence[Following], meeting: Meeting | None, timeout: float) -> int:
    """Makes all sets of all ranks move, or none; returns the version of this rank's first set.

    Raises:
        GroupError: on every rank, with the same text. All have the versions that they had; what an
            earlier advance had kept for a return may be gone.
        TmsError: the same, where there is no meeting.
    """
    part = Moves(operation, 0 if meeting is None else meeting.name, timeout, sets)
    if meeting is not None:
        version = meeting.transact(part, timeout)
    else:
        refused = part.check()["failures"]
        if refused:
            raise error(part.doing(1, "rank"), refused, "all are as before")
        try:
            version = part.do()
        except Exception as why:
            with contextlib.suppress(TmsError):
                part.take_back()
            raise error(
                part.doing(1, "rank"), [failure(part.rank, why)], "all are as before"
            ) from why
    part.finish()
    return version
