"""A process's part in a pause or resume that several processes make, all of them or none.

`Part` is one process's share: whether it can, doing it, and taking it back. What they say is plain
data, which `merged` adds up and `refusals` judges. `_meeting.py` carries it over the store of
torch.distributed, `ray.py` over Ray.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import socket
import sys
import threading
import time
from typing import Any, Callable, ClassVar, NamedTuple

from . import _control, _torch
from ._arguments import check_seconds, check_tags
from ._errors import GroupError, NotSupportedError, TmsError, account
from ._library import load, named

TIMEOUT, CAPTURED, NO_MEMORY, REFUSED = 909, 900, 2, 304
"""cudaError_t numbers."""

MOST_NAMED = 4
"""The most failures that a message gives in full."""


class Failure(NamedTuple):
    """Why one rank could not."""

    rank: int
    host: str
    """"" where it is unknown."""
    cause: str
    code: int
    """A cudaError_t number, or 0."""

    def told(self, name: Callable[[int], str]) -> str:
        """The failure as text, of a rank with that name."""
        where = name(self.rank) + (f" on {self.host}" if self.host else "")
        return f"{where}: {account(self.cause)}" + (
            f" (cudaError {self.code})" if self.code else ""
        )


@dataclasses.dataclass
class Part:
    """One rank's share of a pause or resume of a tag, None: of all."""

    as_before: ClassVar[str] = "all are as before"
    """What is so once all have been taken back, for messages."""

    operation: str
    """"pause" or "resume"."""
    tag: str | None
    rank: int
    timeout: float
    tags: list[str] | None = None
    """Several tags, in place of `tag`."""
    lost: list[str] = dataclasses.field(default_factory=list)
    """The tags among `tags` whose contents a pause does not keep."""
    _since: int | None = dataclasses.field(default=None, init=False)
    """tms_transitions before `do`, or None before its call."""

    def doing(self, count: int, noun: str) -> str:
        """Describes the operation, for messages."""
        return doing(self.operation, self.tag, count, noun)

    def vote(self) -> dict[str, Any]:
        """Returns this rank's vote before it knows of any failure; see `merged`."""
        asks = [self.operation, self.tag, self.rank]
        return {"asks": asks, "needs": {}, "failures": []}

    def check(self) -> dict[str, Any]:
        """Whether this rank can do it, and what it needs of its machine."""
        vote = self.vote()
        try:
            vote["needs"] = self._needs()
        except Exception as error:
            vote["failures"] = [failure(self.rank, error)]
        return vote

    def do(self) -> int:
        """Does it; returns the bytes of device memory that were freed, or mapped, here."""
        self._since = load().c.tms_transitions()
        within = _SHARE * self.timeout  # for ranks that have memory of this one open
        if self.tags is not None:
            return _control.pause(self.tags, discard=self.lost)
        if self.operation == "pause":
            return load().pause(self.tag, within)
        return _control.resume_within(load(), check_tags(self.tag), 0, within, within)

    def take_back(self) -> None:
        """Undoes what `do` has done, if it has done anything: what was so before stays so."""
        library = load()
        if self.operation == "pause":  # the ranges of tms.live count for this pause
            library.c.tms_live(None, 0, None, 0)
        if self._since is None:
            return
        what = f"taking back the {self.operation} of {named(self.tag)}"
        undo = (
            library.c.tms_resume_since if self.operation == "pause" else library.c.tms_pause_since
        )
        library.operate(what, undo, self._since)
        _torch.look_again()

    def _needs(self) -> dict[str, Any]:
        load()
        stats = _control.stats()
        if stats["everything"]:
            raise TmsError("the whole process is paused (pause(everything=True)): resume it first")
        if stats["capturing"]:
            raise TmsError("a stream is being captured into a CUDA graph", code=CAPTURED)
        if self.operation == "resume":
            self._check_devices(stats)
            return {}
        entries = self._entries(stats)
        self._wait_for_devices({device for device, entry in entries if self._has(entry)})
        found: dict[str, Any] = {}
        machine, host = _machine(), socket.gethostname()
        entries = [each for each in entries if _control.name_of(each[1]) not in self.lost]
        memory = sum(entry["pause_host_bytes"] for _, entry in entries)
        available = stats["host_available_bytes"]
        if memory and available is not None:
            found[f"memory of {machine}"] = ["host memory", host, [self.rank], memory, available]
        room = sum(entry["pause_disk_bytes"] for _, entry in entries)
        if room:
            disk, free = _disk(stats["disk_directory"])
            if free is not None:
                what = f"room in {stats['disk_directory']}"
                found[f"disk {disk} of {machine}"] = [what, host, [self.rank], room, free]
        return found

    def _entries(self, stats: _control.Stats) -> list[tuple[int, _control.TagStats]]:
        """Devices, and the figures of the operation's tags on them."""
        return [
            (device["device"], entry)
            for device in stats["devices"]
            for entry in device["tags"]
            if self._means(_control.name_of(entry))
        ]

    def _means(self, name: str) -> bool:
        if self.tags is not None:
            return name in self.tags
        return self.tag is None or name == self.tag

    def _has(self, entry: _control.TagStats) -> int:
        """Bytes that the operation changes."""
        if self.operation == "pause":
            return entry["physical_bytes"] + entry["imported_bytes"]
        return entry["paused_bytes"] + entry["imported_paused_bytes"]

    def _check_devices(self, stats: _control.Stats) -> None:
        """Waits as long as `configure` says, but leaves the others time to hear of a failure."""
        wait = min(_control.default_wait(load()), _SHARE * self.timeout)
        until, released = time.monotonic() + wait, False
        while True:
            short = ""
            for device in stats["devices"]:
                number, entries = device["device"], self._entries(stats)
                need = sum(entry["paused_bytes"] for on, entry in entries if on == number)
                if need > device["free_bytes"]:
                    short = (
                        f"device {number} has {device['free_bytes']:,} bytes free, and "
                        f"{need:,} are needed"
                    )
            if not short:
                return
            if released or not _torch.release_cache():
                if time.monotonic() >= until:
                    raise TmsError(short, code=NO_MEMORY)
                time.sleep(0.1)
            released, stats = True, _control.stats()

    def _wait_for_devices(self, devices: set[int]) -> None:
        """In its own thread, because a collective that another rank never launched never ends."""
        failed: list[BaseException] = []

        def wait() -> None:
            try:
                _torch.synchronize(devices)
            except Exception as error:
                failed.append(error)

        if not _torch.works():
            return
        waiting = threading.Thread(target=wait, daemon=True, name="tms.distributed")
        waiting.start()
        waiting.join(_SHARE * self.timeout)
        if waiting.is_alive():
            raise TmsError(
                f"the work that it has given its devices has not ended within "
                f"{_SHARE * self.timeout:g} s: a collective that not every rank has launched?",
                code=TIMEOUT,
            )
        if failed:
            raise TmsError(f"its devices cannot be waited for: {failed[0]}")


_SHARE = 0.75
"""The part of the timeout for devices and other ranks' memory. In the rest, a rank can report its
failure before the others leave."""


def failure(rank: int, error: BaseException) -> Failure:
    """A rank's own failure, with the text of an exception."""
    cause = error.cause if isinstance(error, TmsError) and error.cause else str(error)
    code = error.code if isinstance(error, TmsError) else 0
    return Failure(rank, socket.gethostname(), cause.strip().rstrip(".") or repr(error), code)


def merged(votes: list[dict[str, Any]]) -> dict[str, Any]:
    """The votes of several ranks as one vote."""
    needs: dict[str, Any] = {}
    for vote in votes:
        for key, (what, host, ranks, need, available) in vote["needs"].items():
            if key in needs:
                _, _, others, sum_, least = needs[key]
                ranks, need, available = others + ranks, sum_ + need, min(least, available)
            needs[key] = [what, host, ranks, need, available]
    different = _differences(votes)
    failures = [each for vote in votes for each in vote["failures"]] + different
    return {
        "asks": votes[0]["asks"],
        "needs": needs,
        "failures": failures[:_MOST_KEPT],
        "apart": bool(different) or any(vote.get("apart", False) for vote in votes),
    }


def _differences(votes: list[dict[str, Any]]) -> list[Failure]:
    asked, other, by = votes[0]["asks"]
    return [
        Failure(
            rank,
            "",
            f"it asks for {operation}({_text(tag)}) while rank {by} asks for "
            f"{asked}({_text(other)}): all ranks of a group make the same calls",
            0,
        )
        for operation, tag, rank in (vote["asks"] for vote in votes)
        if [operation, tag] != [asked, other]
    ]


_MOST_KEPT = 16


def refusals(vote: dict[str, Any]) -> list[Failure]:
    """Why the ranks of this vote cannot do it; empty if they can."""
    found = [Failure(*each) for each in vote["failures"]]
    for what, host, ranks, need, available in vote["needs"].values():
        if need > available:
            by = f"by its {len(ranks)} ranks together" if len(ranks) > 1 else "for its contents"
            cause = f"{need:,} bytes of {what} are needed {by}, and {available:,} are available"
            found.append(Failure(min(ranks), host, cause, REFUSED))
    return found


def error(
    doing: str,
    failures: list[Failure],
    state: str,
    name: Callable[[int], str] = "rank {}".format,
) -> GroupError:
    """The exception that every rank raises.

    Args:
        doing: what failed, as in "pausing tag 'weights' on 4 ranks".
        state: what has become of the ranks, as in "all are as before".
        name: what a rank is called.
    """
    told = "; ".join(each.told(name) for each in failures[:MOST_NAMED])
    if len(failures) > MOST_NAMED:
        told += "; and others"
    first = failures[0]
    return GroupError(
        f"{doing} failed, and {state}. {told}.",
        code=first.code,
        cause=first.cause,
        rank=first.rank,
        host=first.host,
    )


def check_timeout(timeout: float) -> float:
    """Returns `timeout`. Raises TypeError or ValueError if it can't be one."""
    return check_seconds("timeout", timeout, above_zero=True)


def doing(operation: str, tag: str | None, count: int, noun: str) -> str:
    """Describes the operation, for messages."""
    what = "all tags" if tag is None else f"tag {tag!r}"
    many = "s" if count > 1 else ""
    return f"{operation.removesuffix('e')}ing {what} on {count} {noun}{many}"


def _text(tag: str | None) -> str:
    return "" if tag is None else repr(tag)


def _machine() -> str:
    """A name for the host memory of this process: the machine's, or its container's."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            machine = file.read().strip()
        return f"{machine}/{os.stat('/proc/self/ns/cgroup').st_ino}"
    except OSError:
        return socket.gethostname()


def _disk(directory: str) -> tuple[str, int | None]:
    """The file system of a directory, which may not be there yet, and the bytes free in it."""
    while directory and not os.path.isdir(directory):
        above = os.path.dirname(directory)
        if above == directory:
            break
        directory = above
    try:
        found = os.statvfs(directory)
        return str(os.stat(directory).st_dev), found.f_bavail * found.f_frsize
    except OSError:
        return "", None


def module(name: str, purpose: str) -> Any:
    """A module that this package imports only when it is needed.

    Raises:
        NotSupportedError: it cannot be imported.
    """
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except ImportError as missing:
        raise NotSupportedError(f"{purpose} needs {name}, which is not there: {missing}") from None
