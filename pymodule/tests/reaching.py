"""Programs under `tms run`, which others pause and resume by pid, and what this shows outside.

steps.py in gpu/programs defines what the programs print.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from following import Follower
from simulator import BUILD

TMS = BUILD / "bin" / "tms"
PROGRAMS = Path(__file__).resolve().parent / "gpu" / "programs"


def undisturbed() -> dict[str, str]:
    """The environment, without what the tests themselves were started with."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TMS_")}
    own.pop("LD_PRELOAD", None)
    return own


class Program:
    """A program that was started, undisturbed or, with options, under `tms run`.

    Attributes:
        named: how a command of tms names it: by its number or, where TORCHELASTIC_RUN_ID is in its
            environment, as a launch.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        steps: int,
        arguments: Sequence[str] = (),
        *,
        options: Sequence[str] | None = None,
        seconds: float,
        environment: dict[str, str] | None = None,
    ) -> None:
        call = [*map(str, command), str(steps), *arguments]
        if options is not None:
            call = [str(TMS), "run", *options, "--", *call]
        self._words = " ".join(call)
        self._until = time.monotonic() + seconds
        self._seconds = seconds
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._lines: list[str] = []
        self._heard = threading.Condition()
        self._process = subprocess.Popen(
            call,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**undisturbed(), **(environment or {})},
        )
        job = (environment or {}).get("TORCHELASTIC_RUN_ID")
        self.named = ["--job", job] if job else [str(self.pid)]
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._heard:
                self._lines.append(line.rstrip("\n"))
                self._heard.notify_all()
        with self._heard:
            self._heard.notify_all()

    def failure(self, what: str) -> AssertionError:
        """Describes what happened, with all that the program has printed; ends the program."""
        self.kill()
        self._errors.seek(0)
        return AssertionError(
            f"{what}\nprogram: {self._words}\nexit status: {self._process.returncode}\n"
            f"its standard output:\n{os.linesep.join(self._lines)}\n"
            f"its standard error:\n{self._errors.read()}"
        )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def check(self) -> None:
        """Raises if the program has ended or has run longer than it may."""
        if self._process.poll() is not None:
            self._listener.join(10)
            raise self.failure("the program ended before its time")
        if time.monotonic() > self._until:
            raise self.failure(f"the program has not ended in {self._seconds} s")

    def ready(self) -> int:
        """Waits until it has begun; returns the bytes that it has taken."""
        while True:
            with self._heard:
                for line in self._lines:
                    if line.startswith("ready "):
                        return int(line.split()[1])
                self._heard.wait(0.2)
            self.check()

    def end(self) -> tuple[int, str]:
        """Ends it, unless it ends by itself; returns its steps and its digest."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(max(1.0, self._until - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise self.failure(f"the program has not ended in {self._seconds} s") from None
        self._listener.join(10)
        said = dict(line.split(maxsplit=1) for line in self._lines if " " in line)
        if self._process.returncode != 0 or not {"steps", "digest"} <= said.keys():
            raise self.failure("the program failed")
        return int(said["steps"]), said["digest"]


@contextlib.contextmanager
def started(*arguments: Any, **settings: Any) -> Iterator[Program]:
    """A Program that is ended, whatever happens."""
    program = Program(*arguments, **settings)
    try:
        yield program
    finally:
        program.kill()


def tms(*arguments: str, seconds: float) -> list[dict[str, Any]]:
    """What a command of tms prints as JSON; the command must succeed."""
    done = subprocess.run(
        [TMS, *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env=undisturbed(),
    )
    if done.returncode != 0:
        raise AssertionError(
            f"tms {' '.join(arguments)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def pausable(program: Program) -> int:
    """Bytes of the program's memory that a pause would take, by tms ps."""
    return figures(program, "live_bytes")


def held(program: Program) -> int:
    """Bytes of device memory that the program has; of a paused one, what it made since the pause.

    Its threads run until they give the device work. A pause empties PyTorch's cache, so that the
    next tensor takes new memory, which stays until the next pause.
    """
    return figures(program, "physical_bytes")


def figures(program: Program, name: str) -> int:
    """A figure of all its tags together, by tms ps."""
    try:
        return of_processes({program.pid}, name)
    except AssertionError as failed:
        raise program.failure(str(failed)) from None


def of_session(leader: int, name: str) -> int:
    """A figure of all tags of a session's processes. A server of an engine is a tree of them."""
    return of_processes(set(session(leader)), name)


def session(leader: int) -> Iterator[int]:
    """The processes of a session."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(entry.read_text().rpartition(")")[2].split()[3]) == leader:
                yield int(entry.parent.name)


def of_processes(pids: set[int], name: str) -> int:
    """A figure of all their tags. The live_bytes of a device leave out what is paused."""
    for _ in range(100):  # a busy process may not answer within a second
        listed = [process for process in tms("ps", seconds=600) if process["pid"] in pids]
        if listed and not any("error" in process for process in listed):
            break
    else:
        raise AssertionError(f"tms ps lists {listed}")
    devices = [device for process in listed for device in process["stats"]["devices"]]
    return sum(tag[name] for device in devices for tag in device["tags"])


def steer(program: Program, *arguments: str, seconds: float) -> float:
    """Pauses or resumes it; returns how long that took, measured from outside."""
    begin = time.monotonic()
    try:
        answers = tms(arguments[0], *program.named, *arguments[1:], seconds=seconds + 10)
    except (AssertionError, subprocess.TimeoutExpired) as failed:
        raise program.failure(str(failed)) from None
    took = time.monotonic() - begin
    if not answers or not all(answer["ok"] for answer in answers):
        raise program.failure(f"tms {arguments[0]} answers {answers}")
    return took


class Witness(Follower):
    """Another process on the device."""

    def __init__(self) -> None:
        super().__init__([sys.executable, PROGRAMS / "witness.py"], env=undisturbed())
        self.total = self._figures({"op": "free"})["total"]

    def _figures(self, request: dict[str, Any]) -> dict[str, int]:
        answer: dict[str, int] = json.loads(self.ask(json.dumps(request)))
        return answer

    def free(self) -> int:
        """The device's free bytes."""
        return self._figures({"op": "free"})["free"]

    def use(self, size: int, seconds: float) -> None:
        """Takes a number of bytes, and checks some time later what it has written there."""
        answer = self._figures({"op": "use", "bytes": size, "seconds": seconds})
        assert answer["wrong"] == 0, answer
        assert answer["used"] >= size - 4, answer


@contextlib.contextmanager
def witness() -> Iterator[Witness]:
    made = Witness()
    try:
        yield made
    finally:
        made.kill()


@dataclass
class Times:
    """Seconds of each pause and resume."""

    out: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        def words(of: list[float]) -> str:
            return f"{sorted(of)[len(of) // 2]:.3f} s, at most {max(of):.3f} s"

        return f"{len(self.out)} pauses; out {words(self.out)}; back {words(self.back)}"


def disturb(
    program: Program,
    other: Witness,
    pauses: int,
    *,
    gap: float = 0.3,
    looks: int = 2,
    seconds: float = 2.0,
    wait: float = 30,
) -> Times:
    """Pauses and resumes a program at random moments, at most `gap` seconds apart.

    Another process looks at `looks` of the pauses, the first among them: the device's free memory
    has risen by what the program has taken, and can be used for a number of seconds.
    """
    taken = program.ready()
    moments = random.Random(pauses)
    times = Times()
    for number in range(pauses):
        time.sleep(moments.uniform(0, gap))
        program.check()
        before = other.free()
        times.out.append(steer(program, "pause", "--timeout", str(wait), seconds=wait))
        if number % max(1, pauses // looks) == 0:
            gained, made = other.free() - before, held(program)
            if gained + made < 0.9 * taken:
                raise program.failure(
                    f"pause {number} has freed {gained >> 20} MiB of the {taken >> 20} MiB that "
                    f"the program has taken, and it has made {made >> 20} MiB since"
                )
            other.use(int(0.9 * gained), seconds)
        times.back.append(steer(program, "resume", "--wait", str(wait), seconds=wait))
    program.check()
    return times


def equal(
    command: Sequence[str | Path],
    said: tuple[int, str],
    arguments: Sequence[str] = (),
    *,
    seconds: float,
    environment: dict[str, str] | None = None,
) -> None:
    """Checks that an undisturbed run of as many steps has the same results."""
    with started(command, said[0], arguments, seconds=seconds, environment=environment) as alone:
        expected = alone.end()
        if expected != said:
            raise alone.failure(f"undisturbed {expected}, disturbed {said}")
