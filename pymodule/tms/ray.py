"""One pause or resume over several Ray actors: all of them do it, or none.

    import tms.ray

    tms.ray.pause(trainers)
    with tms.ray.lend(from_=rollouts, to=trainers):
        ray.get([trainer.step.remote() for trainer in trainers])

Actors need only the library, preloaded into their processes by their runtime_env:

    env = {"env_vars": {"LD_PRELOAD": tms.library_path()}}
    Trainer.options(runtime_env=env).remote()

The caller asks every actor by `actor.__ray_call__`, so each does it between two of its methods, and
the caller waits for one that is in a method. In an actor that runs several methods at a time,
nothing keeps the other methods from the paused memory. docs/distributed.md says what holds when
which part fails. Ray is needed only when a function is called.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, Callable

from ._arguments import check_tag
from ._errors import GroupError
from ._scope import Between, Scope
from ._together import (
    TIMEOUT,
    Failure,
    Part,
    check_timeout,
    doing,
    error,
    failure,
    merged,
    module,
    refusals,
)

__all__ = ["GroupError", "lend", "pause", "paused", "resume"]

_TIMEOUT = 60.0


def pause(actors: Sequence[Any], tag: str | None = None, timeout: float = _TIMEOUT) -> int:
    """Pauses a tag in every actor, or in none.

    First every actor checks that it can, as in `tms.distributed.pause`; then all pause. When an
    actor cannot, fails, dies or does not answer in time, the others resume what they have paused.

    Args:
        actors: handles of actors, each once.
        tag: as given to `tms.region`, or None for all tags.
        timeout: seconds for the actors to begin, and again for all to be done.

    Returns:
        How many bytes of device memory were freed, in all actors together.

    Raises:
        GroupError: names the actor, by its place, class and number, its host and the cause. All
            are as before, unless the message says otherwise.
        NotSupportedError: there is no Ray.
        ValueError: there are no actors, one is named twice, or the timeout is wrong.
    """
    return _transact("pause", actors, tag, timeout)


def resume(actors: Sequence[Any], tag: str | None = None, timeout: float = _TIMEOUT) -> int:
    """Resumes a tag in every actor, or in none.

    When one fails, the others pause again what they have resumed.

    Args and Raises: as for `pause`.

    Returns:
        How many bytes of device memory were mapped, in all actors together.
    """
    return _transact("resume", actors, tag, timeout)


def paused(actors: Sequence[Any], tag: str | None = None, timeout: float = _TIMEOUT) -> Scope:
    """Pauses a tag in all actors for the body and resumes it afterwards, even if the body raised.

    A context manager, and a decorator of functions.

    Args and Raises: as for `pause` on entering and `resume` on leaving.
    """
    given = _distinct(actors), None if tag is None else check_tag(tag), check_timeout(timeout)
    return Between("tms.ray.paused()", lambda: pause(*given), lambda freed: resume(*given))


def lend(
    *,
    from_: Sequence[Any],
    to: Sequence[Any],
    tag: str | None = None,
    timeout: float = _TIMEOUT,
) -> Scope:
    """Lends the GPUs of some actors to others on the same GPUs for the body.

    Entering pauses `from_` and resumes `to`; what is not paused in `to` is left as it is. Leaving,
    even if the body raised, pauses `to` and resumes `from_`. If `to` cannot be resumed on entering,
    `from_` is resumed again and the body does not run. If `to` cannot be paused on leaving, for
    instance because an actor has died, `from_` is resumed if it fits beside those of `to` that
    live. If it does not, that error is raised, with the first as its __context__.

    Args:
        from_: the actors whose memory is given up, such as rollout servers.
        to: the actors that use the GPUs in the body, such as trainers.
        tag: the tag in both, or None for all tags.
        timeout: as for `pause`, for each step.

    Raises: as for `pause`.
    """
    tag = None if tag is None else check_tag(tag)
    seconds = check_timeout(timeout)
    lender, borrower = _distinct(from_, "from_"), _distinct(to, "to")
    if {_key(actor) for actor in lender} & {_key(actor) for actor in borrower}:
        raise ValueError("an actor cannot lend to itself: from_ and to have one in common")

    def enter() -> None:
        pause(lender, tag, seconds)
        try:
            resume(borrower, tag, seconds)
        except BaseException:
            resume(lender, tag, seconds)
            raise

    def leave(_: None) -> None:
        try:
            pause(borrower, tag, seconds)
        finally:
            resume(lender, tag, seconds)

    return Between("tms.ray.lend()", enter, leave)


def _transact(operation: str, actors: Sequence[Any], tag: str | None, timeout: float) -> int:
    tag = None if tag is None else check_tag(tag)
    return _Calls(_distinct(actors), operation, tag, check_timeout(timeout)).transact()


def _key(actor: Any) -> str:
    return str(actor._actor_id.hex()) if hasattr(actor, "_actor_id") else str(id(actor))


def _distinct(actors: Sequence[Any], name: str = "actors") -> Sequence[Any]:
    if not isinstance(actors, Iterable):
        raise TypeError(f"{name} must be a list of handles of Ray actors, not {actors!r}")
    actors = list(actors)
    if not actors:
        raise ValueError(f"{name} must have at least one actor, and is empty")
    for actor in actors:
        if not hasattr(actor, "__ray_call__"):
            raise TypeError(f"{name} must have handles of Ray actors alone, and has {actor!r}")
    if len({_key(actor) for actor in actors}) < len(actors):
        raise ValueError(f"{name} must have each actor once, and has one twice")
    return actors


class _Calls:
    """One pause or resume, as the caller sees it."""

    def __init__(
        self, actors: Sequence[Any], operation: str, tag: str | None, timeout: float
    ) -> None:
        self._ray = module("ray", "tms.ray")
        self._actors = actors
        self._asked = operation, tag
        self._timeout = timeout
        self._number = uuid.uuid4().hex
        self._hosts: dict[int, str] = {}
        self._gone: set[int] = set()
        self._doing = doing(operation, tag, len(actors), "actor")

    def transact(self) -> int:
        try:
            return self._transact()
        finally:
            for rank in range(len(self._actors)):
                self._ask(rank, _end)

    def _transact(self) -> int:
        votes = self._all(_check, *self._asked, self._timeout)
        said = [vote for vote in votes if not isinstance(vote, Failure)]
        self._hosts = {vote["asks"][2]: vote["host"] for vote in said}
        failures = [vote for vote in votes if isinstance(vote, Failure)]
        failures += refusals(merged(said)) if said else []
        if failures:
            for rank in range(len(self._actors)):
                self._ask(rank, _take_back)
            raise error(self._doing, failures, "all that live are as before", self._name)
        try:
            done = self._all(_do)
        except BaseException:
            self._take_back()
            raise
        failures = [each for each in done if isinstance(each, Failure)]
        if failures:
            raise error(self._doing, failures, self._take_back(), self._name)
        return sum(each for each in done if not isinstance(each, Failure))

    def _take_back(self) -> str:
        """Makes all living actors undo it, late ones later; returns the outcome as text."""
        back = self._all(_take_back)
        stuck = [each for each in back if isinstance(each, Failure) and each.rank not in self._gone]
        if not stuck:
            return "all that live are as before"
        told = "; ".join(each.told(self._name) for each in stuck)
        return f"all that live are as before but these, late ones until they come to it ({told})"

    def _all(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The results of a function in all actors within the time; each may be a `Failure`."""
        until = time.monotonic() + self._timeout
        asked = [self._ask(rank, function, *arguments) for rank in range(len(self._actors))]
        waiting = [each for each in asked if not isinstance(each, Failure)]
        there: list[Any] = []
        if waiting:
            left = max(0.0, until - time.monotonic())
            there, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=left)
        return [self._result(rank, each, each in there) for rank, each in enumerate(asked)]

    def _ask(self, rank: int, function: Callable[..., Any], *arguments: Any) -> Any:
        """A reference to the coming result, or a `Failure`."""
        try:
            call = self._actors[rank].__ray_call__
            return call.remote(function, self._number, rank, *arguments)
        except Exception as own:
            return self._failure(rank, own)

    def _result(self, rank: int, reference: Any, there: bool) -> Any:
        if isinstance(reference, Failure):
            return reference
        if not there:
            why = f"it has not answered within {self._timeout:g} s: it is in a method, or stuck"
            return Failure(rank, self._hosts.get(rank, ""), why, TIMEOUT)
        try:
            return self._ray.get(reference)
        except Exception as own:
            return self._failure(rank, own)

    def _failure(self, rank: int, own: Exception) -> Failure:
        what = "it cannot be asked"
        if isinstance(own, self._ray.exceptions.RayActorError):
            self._gone.add(rank)
            what = "it has died, or cannot be reached"
        line = " ".join(str(own).split())[:600].rstrip(".")  # Ray's text has many
        return Failure(rank, self._hosts.get(rank, ""), f"{what}: {line}", 0)

    def _name(self, rank: int) -> str:
        return f"actor {rank} {self._actors[rank]!r}"


# This runs in the process of an actor, and returns what is done, or a `Failure`.

_parts: dict[str, Part] = {}
"""The parts of the calls in progress, perhaps of several callers, by their numbers."""


def _check(
    actor: Any, number: str, rank: int, operation: str, tag: str | None, timeout: float
) -> dict[str, Any]:
    import socket

    part = _parts[number] = Part(operation, tag, rank, timeout)
    return {**part.check(), "host": socket.gethostname()}


def _do(actor: Any, number: str, rank: int) -> int | Failure:
    try:
        if number not in _parts:
            raise RuntimeError("the actor was started again after it had said that it can")
        return _parts[number].do()
    except Exception as own:
        return failure(rank, own)


def _take_back(actor: Any, number: str, rank: int) -> Failure | None:
    try:
        if number in _parts:
            _parts[number].take_back()
    except Exception as own:
        return failure(rank, own)
    return None


def _end(actor: Any, number: str, rank: int) -> None:
    _parts.pop(number, None)
