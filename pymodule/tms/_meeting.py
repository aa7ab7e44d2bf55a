"""How the ranks of a group reach one decision: over a store, without a collective.

A collective with a dead rank never ends; but when the time is over, a key that the rank did not
write is known to be missing. In each phase every rank says something (a vote). A rank adds the
votes of up to `FAN` others to its own, and writes that for the next, so rank 0 has all votes after
log n steps. The decision is one key that is written once (compare_set): a rank whose time is over
before there is a decision writes that the phase failed, and all later ranks, even rank 0, read
that. So all that can reach the store get the same answer, whichever rank dies.

The store has the number of the next call, which ranks raise when a call is decided. A rank that has
missed calls joins those who wait, if they ask for the same as it does. Otherwise it may be late,
and its call fails as the first of those did. Where ranks have come one call apart, so that they ask
for different things twice, those that do not ask as rank 0 does fail, and the others wait for their
next call.

Keys of a call are removed when the next call has been decided: by then all ranks have come to that.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from ._errors import TmsError
from ._together import TIMEOUT, Failure, Part, error, failure, merged, refusals

FAN = 8
"""How many ranks one rank hears."""

_SLICE = 5.0
"""The longest single wait in the store, in seconds: Ctrl-C is noticed after that time."""


class StoreLost(Exception):
    """The store does not answer."""


class Meeting:
    """One rank's view of a group. Calls are made in the same order by all of its ranks.

    Args:
        store: of torch.distributed, this rank's own connection.
        rank: of this process in the group.
        names: the number that names each rank of the group.
    """

    def __init__(self, store: Any, rank: int, names: list[int]) -> None:
        self.store = store
        self.rank = rank
        self.name = names[rank]
        self.names = names
        self._last = 0  # the number of the last call, from 1
        self._apart = False  # in it, ranks asked for different things
        self._written: list[str] = []
        self._lock = threading.Lock()

    def transact(self, part: Part, timeout: float) -> int:
        """Makes every rank do its part, or none; returns the bytes of this rank's part.

        Raises:
            GroupError: on every rank, with the same text; everything is as before.
        """
        what, until = (
            part.doing(len(self.names), "rank"),
            time.monotonic() + timeout,
        )
        with self._lock:
            while True:
                with self._call(what, part, max(_LEAST, until - time.monotonic())) as call:
                    # Phase 2 fails too, so that a rank that has passed phase 1 does not finish.
                    with call.told(1, 2):
                        refused = call.agree(1, part.check())
                    if not refused:
                        self._apart = False
                        return self._do(call, part)
                apart, self._apart = self._apart, call.apart
                if apart and call.with_first and time.monotonic() < until:
                    continue
                with contextlib.suppress(TmsError):
                    part.take_back()
                raise error(what, refused, "all are as before")

    @contextlib.contextmanager
    def _call(self, what: str, part: Part, timeout: float) -> Iterator[_Call]:
        """The next call; its number is the last one's, plus those of the calls that were missed."""
        asks = json.dumps([part.operation, part.tag])
        try:
            number = int(self.ask("compare_set", "next", "", "1"))
            if self._last == 0 or number <= self._last:  # the store is new
                self.ask("set", f"host/{self.rank}", socket.gethostname())
                self._last, self._written = min(self._last, number - 1), []
            if number > self._last + 1 and not self._waited_for(number, asks):
                self._last += 1
                missed = _Call(self, what, timeout, self._last, asks)
                raise error(what, missed.outcome(), "all are as before")
            self._last = number
            self.ask("compare_set", f"{number}/asks", "", asks)
            self._written.append(f"{number}/asks")
        except StoreLost as lost:
            raise error(what, [failure(self.name, lost)], "this rank is as before") from lost
        call = _Call(self, what, timeout, number, asks)
        try:
            yield call
        finally:
            with contextlib.suppress(StoreLost):
                self.ask("compare_set", "next", str(number), str(number + 1))

    def _waited_for(self, number: int, asks: str) -> bool:
        """Whether a rank is in the call with that number, and asks for the same."""
        key = f"{number}/asks"
        return self.there(key) and bytes(self.ask("get", key)).decode() == asks

    def _do(self, call: _Call, part: Part) -> int:
        done, state = 0, part.as_before
        interrupted: BaseException | None = None
        try:
            vote = part.vote()
            try:
                done = part.do()
            except Exception as own:
                vote["failures"] = [failure(self.name, own)]
            call.restart()  # the work is not counted
            failures = call.agree(2, vote)
        except StoreLost as lost:
            failures = [failure(self.name, lost)]
            state = "this rank is as before, and so are those that had not heard that all was done"
        except BaseException as ending:
            call.tell(ending, 2)
            if call.went_well(2):  # all ranks had done it before
                raise
            failures, interrupted = [failure(self.name, ending)], ending
        if not failures:
            return done
        try:
            part.take_back()  # even a part that failed may have something to take back
        except Exception as own:
            state = f"rank {self.name}, this one, cannot be taken back ({own}), while others are"
        if interrupted is not None:
            raise interrupted
        raise error(call.doing, failures, state)

    def remove_before(self, number: int) -> None:
        """Drops this rank's keys of the calls before one that all ranks have reached."""
        kept = [key for key in self._written if int(key.split("/")[0]) >= number]
        for key in self._written:
            if key not in kept:
                with contextlib.suppress(StoreLost):
                    self.ask("delete_key", key)
        self._written = kept

    def write(self, key: str, value: Any) -> None:
        self._written.append(key)
        self.ask("set", key, json.dumps(value))

    def settle(self, key: str, value: Any) -> Any:
        """Writes a decision unless there is one; returns the one that is then there."""
        if self.rank == 0:
            self._written.append(key)
        return json.loads(self.ask("compare_set", key, "", json.dumps(value)))

    def there(self, *keys: str) -> bool:
        return bool(self.ask("check", list(keys)))

    def read(self, keys: list[str]) -> list[Any]:
        return [json.loads(value) for value in self.ask("multi_get", keys)]

    def ask(self, name: str, *arguments: Any) -> Any:
        """Calls the store. Raises: StoreLost."""
        try:
            return getattr(self.store, name)(*arguments)
        except (RuntimeError, OSError) as lost:
            raise StoreLost(f"the group's store does not answer ({lost})") from lost

    def wait(self, keys: list[str], until: float, unless: str | None = None) -> bool:
        """Waits for all keys; False when the time is over, or the key `unless` is there."""
        while True:
            left = until - time.monotonic()
            try:
                self.store.wait(keys, datetime.timedelta(seconds=min(max(left, _LEAST), _SLICE)))
                return True
            except RuntimeError:  # time is over, or the store is lost: the next call shows which
                if self.there(*keys):
                    return True
            if left <= 0 or unless is not None and self.there(unless):
                return False

    def absent(self, key: str) -> list[Failure]:
        """The ranks that have not written in a phase although all ranks that they hear have."""
        found = []
        look = [0]
        while look:
            rank = look.pop()
            late = [each for each in self.heard(rank) if not self.there(f"{key}/{each}")]
            look += late
            if not late and rank != self.rank:
                found.append(rank)
        return [
            Failure(self.names[rank], self._host(rank), _ABSENT, TIMEOUT) for rank in sorted(found)
        ]

    def heard(self, rank: int) -> list[int]:
        """The ranks that one hears."""
        first = FAN * rank + 1
        return [*range(first, min(first + FAN, len(self.names)))]

    def _host(self, rank: int) -> str:
        key = f"host/{rank}"
        return bytes(self.ask("get", key)).decode() if self.there(key) else ""


_LEAST = 0.001
_ABSENT = "it has not answered in time: it has ended, is stuck, or did not make this call"


class _Call:
    """One call that all ranks make."""

    def __init__(
        self, meeting: Meeting, doing: str, timeout: float, number: int, asks: str
    ) -> None:
        self.doing = doing
        self.apart = False
        """Ranks asked for different things."""
        self.with_first = True
        """This rank asked as rank 0 did."""
        self._asks = json.loads(asks)
        self._meeting = meeting
        self._timeout = timeout
        self.restart()
        self.number = number

    def restart(self) -> None:
        """Starts the timeout again."""
        self._until = time.monotonic() + self._timeout

    def agree(self, phase: int, vote: dict[str, Any]) -> list[Failure]:
        """All ranks' decision on a phase: why it failed, or nothing."""
        decision = self._decided(phase, vote)
        self.apart = decision.get("apart", False)
        self.with_first = decision.get("asks", self._asks)[:2] == self._asks
        if phase == 2:  # all have come to this call
            self._meeting.remove_before(self.number)
        return [Failure(*each) for each in decision["failures"]]

    def _decided(self, phase: int, vote: dict[str, Any]) -> Any:
        meeting, key = self._meeting, self._key(phase)
        others = [f"{key}/{rank}" for rank in meeting.heard(meeting.rank)]
        if others:
            if not meeting.wait(others, self._until, unless=key):
                return meeting.settle(key, {"failures": self._late(key)})
            vote = merged([vote, *meeting.read(others)])
        if meeting.rank == 0:
            return meeting.settle(key, {**vote, "failures": refusals(vote)})
        meeting.write(f"{key}/{meeting.rank}", vote)
        if phase == 2:  # a good moment, because this rank only waits
            meeting.remove_before(self.number)
        decided = meeting.wait([key], self._until)
        # This is also the cheapest way to read it: one message, where a get takes two.
        return meeting.settle(key, {"failures": [] if decided else self._late(key)})

    def outcome(self) -> list[Failure]:
        """How a call was decided that this rank did not come to."""
        found = self._meeting.settle(self._key(1), {"failures": _UNKNOWN})["failures"]
        return [Failure(*each) for each in found or _UNKNOWN]

    def went_well(self, phase: int) -> bool:
        """Whether all ranks have decided that. False where it cannot be known."""
        try:
            return not self._meeting.settle(self._key(phase), {"failures": _UNKNOWN})["failures"]
        except StoreLost:
            return False

    @contextlib.contextmanager
    def told(self, *phases: int) -> Iterator[None]:
        """For a body that changes nothing: its exception becomes the others' decision, too."""
        try:
            yield
        except StoreLost as lost:
            why = [failure(self._meeting.name, lost)]
            raise error(self.doing, why, "this rank is as before") from lost
        except BaseException as ending:
            self.tell(ending, *phases)
            raise

    def tell(self, ending: BaseException, *phases: int) -> None:
        """Decides that phases have failed, unless they are decided."""
        why = [failure(self._meeting.name, ending)]
        with contextlib.suppress(StoreLost):
            for phase in phases:
                self._meeting.settle(self._key(phase), {"failures": why})

    def _late(self, key: str) -> list[Failure]:
        return self._meeting.absent(key) or [
            Failure(
                self._meeting.name,
                socket.gethostname(),
                f"there was no answer from all within {self._timeout:g} s",
                TIMEOUT,
            )
        ]

    def _key(self, phase: int) -> str:
        return f"{self.number}/{phase}"


_UNKNOWN = [[-1, "", "it is not known what came of it", 0]]
