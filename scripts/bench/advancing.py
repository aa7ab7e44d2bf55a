"""The step advance-MODEL of `scripts/bench.sh engines`: an engine follows what a trainer writes.

Three processes share a GPU: a trainer (learner.py), an engine whose weights are a set, and one that
takes the same weights in its own ways, by CUDA IPC and from a checkpoint. After each way the tokens
must be those that the checkpoint leads to.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import usage  # noqa: F401
from advance import Device
from serving import GIB, ROOT, Bench, Failure, Served, Spread, command, end, llama, rounded

LEARNER = ROOT / "scripts" / "bench" / "learner.py"
STEPS = {"1B": (4, 4)}
FEW = (2, 1)  # of larger models, of which the device has no room for many
"""Steps of the trainer: the version before is let go, and then kept for returns."""

MOVES = 40
ANSWERS = 4  # to each prompt, for a step of the trainer
STOPS = ("made", "half", "sealing", "sealing")
"""Moments in the writing of a version at which trainers are killed."""


class Learner:
    """A process of learner.py, and what it answers."""

    def __init__(self, bench: Bench, name: str, model: str, gpus: str, folder: Path) -> None:
        with (bench.folder / f"{name}.log").open("a") as log:
            self.process = bench.start(
                [sys.executable, str(LEARNER), str(folder)],
                env={
                    **bench.variables(model, gpus),
                    "LD_PRELOAD": str(ROOT / "build" / "lib" / "libtms.so"),
                },
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def ready(self) -> Learner:
        self.answer(120)
        return self

    def tell(self, word: str, argument: Any) -> None:
        assert self.process.stdin
        print(json.dumps([word, argument]), file=self.process.stdin, flush=True)

    def answer(self, timeout: float = 60) -> Any:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise Failure(f"the trainer has not answered in {timeout} s") from None
        if not line:
            raise Failure(f"the trainer has ended with {self.process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise Failure(f"the trainer: {answer['error']}")
        return answer

    def ask(self, word: str, argument: Any = None) -> Any:
        self.tell(word, argument)
        return self.answer()

    def kill(self) -> None:
        end(self.process)


class Run:
    """One model; `known` has the tokens of each version, from the engine that reads files."""

    def __init__(self, bench: Bench, name: str, model: str, gpus: str, limit: float) -> None:
        self.bench, self.name, self.model, self.gpus = bench, name, model, gpus
        self.ends = time.monotonic() + bench.left(limit)
        self.folder = bench.checkpoint(model)
        self.ranks = len(gpus.split(","))
        self.device = Device(gpus)
        self.before = {one["name"] for one in sets()}
        self.running: list[Served | Learner] = []
        self.known: dict[int, Any] = {}
        self.told: list[tuple[str, Any]] = []
        self.trained: Any = None  # tokens of what the trainer has
        self.last = 1
        self.failures = 0

    # Processes

    def follower(self, trained: bool = False) -> Served:
        words: list[object] = ["--prefixes", "--tp", self.ranks]
        variables = {}
        if self.bench.engine == "vllm":
            words = ["tms", *words, *(["--extra", '{"trained": true}'] if trained else [])]
        else:
            variables = {"TMS_SGLANG_KEPT": "1", "TMS_SGLANG_TRAINED": str(int(trained))}
        return self._served("follower", *words, **variables)

    def own(self) -> Served:
        words: list[object] = ["--prefixes", "--tp", self.ranks]
        if self.bench.engine == "vllm":
            words = ["safetensors", *words, *(["--transfer"] if self.ranks == 1 else [])]
        return self._served("own", *words)

    def _served(self, what: str, *words: object, **variables: str) -> Served:
        name = f"{self.name}-{what}"
        folder = self.folder
        made = Served(
            self.bench, name, self.model, self.gpus, folder, *words, run=False, **variables
        )
        self.running.append(made)
        return made

    def learner(self) -> Learner:
        made = Learner(self.bench, f"{self.name}-learner", self.model, self.gpus, self.folder)
        self.running.append(made)
        return made

    def start(self) -> None:
        with concurrent.futures.ThreadPoolExecutor() as pool:
            learning = self.learner()
            starts = [pool.submit(self.follower), pool.submit(self.own)]
            self.engine, self.other = (one.result() for one in starts)
            self.trainer = learning.ready()
        self.names = sorted(one["name"] for one in sets() if one["name"] not in self.before)
        self.known[1] = self.other.tokens()
        self.note(
            "start",
            equal=self.engine.tokens() == self.known[1],
            seconds=[rounded(one.seconds) for one in (self.engine, self.other)],
            sets=len(self.names),
        )
        if len(self.names) != self.ranks:
            raise Failure(f"there are {self.ranks} ranks, and sets {self.names}")

    # What is measured

    def note(self, what: str, equal: bool | None = None, **figures: Any) -> None:
        self.failures += equal is False
        self.bench.note(step=self.name, what=what, equal=equal, **figures)

    def left(self) -> float:
        return self.ends - time.monotonic()

    @contextlib.contextmanager
    def watched(self, figures: dict[str, Any]) -> Iterator[None]:
        """Adds the most device memory that the body takes, in GiB, to what there was before it."""
        self.device.peak = before = self.device.used()
        try:
            yield
        finally:
            figures["peak"] = rounded((self.device.peak - before) / GIB)

    def learn(self) -> None:
        samples = self.engine.ask(f"samples {ANSWERS}")["samples"]
        groups = [{"prompt": p, "answers": a} for p, a in zip(llama.prompts(), samples)]
        self.note("the trainer learns", **rounded_all(self.trainer.ask("learn", groups)))

    def checkpoint(self) -> Path:
        return self.bench.folder / f"{self.name}-checkpoint"

    def by_set(self, keep: bool) -> Any:
        """The engine's tokens after an advance to what the trainer has."""
        way = "advance, N-1 kept" if keep else "advance"
        figures: dict[str, Any] = {}
        with self.watched(figures):
            wrote = self.trainer.ask("next", {"names": self.names})
            moved = self.engine.ask("keep" if keep else "advance")
        self.last = moved["version"]
        tokens = self.engine.tokens()
        self._moved(way, wrote, moved, tokens, figures)
        return tokens

    def by_own_ways(self) -> Any:
        """The other engine's tokens after each of its own ways; the checkpoint comes last."""
        ways = ["take"] if self.ranks == 1 else []
        for word in [*ways, "read"]:
            way = {"take": "its own, CUDA IPC", "read": "its own, checkpoint"}[word]
            figures: dict[str, Any] = {}
            try:
                with self.watched(figures):
                    path = self.bench.folder / f"{self.name}-handles"
                    if word == "take":
                        told = {"engine": self.bench.engine, "path": str(path)}
                        wrote = self.trainer.ask("handles", told)
                    else:
                        path = self.checkpoint()
                        wrote = self.trainer.ask("file", str(path))
                    moved = self.other.ask(f"{word} {path}")
            except Failure as error:
                self.note(way, equal=False, failed=str(error)[:300])
                continue
            tokens = self.other.tokens()
            self._moved(way, wrote, moved, tokens, figures)
        return tokens

    def _moved(self, way: str, wrote: Any, moved: Any, tokens: Any, figures: Any) -> None:
        if not moved["dropped"]:
            self.note(way, equal=False, failed="the prefix cache was not dropped")
        self.bench.note(
            step=self.name,
            way=way,
            **{"sealed to token": rounded(moved["end"] - wrote["sealed"])},
            call=rounded(moved["seconds"]),
            version=moved["version"],
            **{
                key: rounded(wrote[key]) for key in ("making", "filling", "sealing") if key in wrote
            },
            **figures,
        )
        self.told.append((way, tokens))

    def step(self, keep: bool) -> None:
        self.learn()
        self.told.clear()
        self.by_set(keep)
        self.known[self.last] = self.trained = self.by_own_ways()
        for way, tokens in self.told:
            right = tokens == self.known[self.last]
            self.note(f"tokens of version {self.last}", way=way, equal=right)
        new = self.known[self.last] not in [self.known[v] for v in self.known if v != self.last]
        self.bench.note(step=self.name, what="tokens unlike those of other versions", new=new)

    def moves(self, count: int) -> None:
        """To the version before and to the newest, and the tokens of each."""
        equal, to_token, calls = 0, [], []
        for number in range(count):
            begun = time.monotonic()
            moved = self.engine.ask("keep" if number % 2 else "back")
            to_token.append(moved["end"] - begun)
            calls.append(moved["seconds"])
            equal += self.engine.tokens() == self.known[moved["version"]]
        self.note(
            f"{count} advances and returns",
            equal=equal == count,
            **{"to token": Spread(to_token), "call": Spread(calls)},
        )

    def settled(self, least: int) -> float:
        """GiB above `least` that stay in use."""
        ends = time.monotonic() + 10
        while self.device.used() > least + (64 << 20) and time.monotonic() < ends:
            time.sleep(0.05)
        return max(0.0, rounded((self.device.used() - least) / GIB) or 0.0)

    # Kills

    def kill_writers(self) -> None:
        """Trainers with the first version's weights are killed as they write them."""
        self.goes_on()  # so that there is a version before, as there is afterwards
        before, small = self.device.used(), self.model in STEPS
        stops = STOPS if small else STOPS[1:3]
        writers = [self.learner() for _ in stops if small]  # they load the model at the same time
        for number, moment in enumerate(stops):
            writer = (writers[number] if small else self.learner()).ready()
            writer.tell("next", {"names": self.names, "stop": moment})
            if writer.answer() != moment:
                raise Failure(f"the trainer was not killed at {moment!r}")
            time.sleep(0.003 * number if moment == "sealing" else 0)
            writer.kill()
            if self.level(f"the trainer is killed: {moment}, between two ranks"):
                continue
            moved = self.engine.ask("keep")
            came = moved["version"] > self.last
            self.known.setdefault(moved["version"], self.known[1])
            self.last = moved["version"]
            self.note(
                f"the trainer is killed: {moment}",
                equal=self.engine.tokens() == self.known[self.last]
                and not (came and moment != "sealing"),
                version="the next" if came else "as before",
            )
        more = self.settled(before)
        self.note("memory after killed trainers", equal=more == 0 or None, GiB=more)

    def level(self, what: str) -> bool:
        """Reports whether a trainer was killed when only some ranks' versions were sealed.

        No rank goes on then, until the others have a version of that number, too.
        """
        newest = {one["name"]: one["version"] for one in sets() if not one["replaced"]}
        numbers = [newest[name] for name in self.names]
        if len(set(numbers)) == 1:
            return False
        with contextlib.suppress(Failure):
            self.engine.ask("keep")
            raise AssertionError("ranks have gone on to different versions")
        right = self.engine.tokens() == self.known[self.last]
        late = [rank for rank, number in enumerate(numbers) if number < max(numbers)]
        self.trainer.ask("next", {"names": self.names, "ranks": late})
        self.goes_on()
        self.note(what, equal=right and self.engine.tokens() == self.trained)
        return True

    def goes_on(self) -> None:
        """The engine advances to what the trainer has."""
        self.trainer.ask("next", {"names": self.names})
        self.last = self.engine.ask("keep")["version"]
        self.known[self.last] = self.trained

    def kill_trainer(self) -> None:
        """A version stands that was sealed right before its trainer was killed."""
        self.learn()
        self.trainer.ask("file", str(self.checkpoint()))
        self.other.ask(f"read {self.checkpoint()}")
        expected = self.other.tokens()
        self.trainer.ask("next", {"names": self.names})
        self.trainer.kill()
        self.last = self.engine.ask("keep")["version"]
        self.known[self.last] = expected
        self.note("the trainer is killed: sealed", equal=self.engine.tokens() == expected)

    def kill_engine(self, moment: str) -> None:
        """The next start serves the newest version."""
        with socket.create_connection(("127.0.0.1", self.engine.port), 10) as connection:
            connection.sendall(b"moves\n" if moment == "as it moves" else b"samples 50\n")
            time.sleep(0.5)
            begun = time.monotonic()
            self.engine.kill()
        newest = max(one["version"] for one in sets() if one["name"] in self.names)
        expected = self.known.get(newest, self.known[1])  # of a writer killed at its last moment
        self.engine = self.follower(trained=True)
        seconds = rounded(time.monotonic() - begun)
        right = self.engine.tokens() == expected
        self.note(f"the engine is killed: {moment}", equal=right, seconds=seconds)

    def end(self) -> None:
        for one in self.running:
            with contextlib.suppress(OSError):
                one.kill()
        for name in sorted({one["name"] for one in sets()} - self.before):
            command("kept", "drop", name)
        shutil.rmtree(self.checkpoint(), ignore_errors=True)


def sets() -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(command("kept", "--json"))
    return [one for one in listed if one["sealed"]]


def rounded_all(figures: dict[str, float]) -> dict[str, float | None]:
    return {key: rounded(value) for key, value in figures.items()}


def advances(bench: Bench, name: str, model: str, gpus: str, limit: float) -> None:
    """Each part may fail, and the next one does what it can."""
    run = Run(bench, name, model, gpus, limit)
    empty = run.device.used()
    try:
        run.start()
        for what, needs, part in parts_of(run):
            if run.left() < needs:
                bench.note(step=name, what=what, left="out, for lack of time")
                continue
            try:
                part()
            except Exception as error:  # the next part may do better
                run.note(what, equal=False, failed=f"{type(error).__name__}: {error}"[:600])
                if run.engine.process.poll() is not None or run.other.process.poll() is not None:
                    raise
    finally:
        run.end()
    more = run.settled(empty)
    run.note("memory after the end", equal=more == 0 or None, GiB=more)
    summary(bench, name)
    if run.failures:
        raise Failure(f"{run.failures} comparisons or parts have failed")


def parts_of(run: Run) -> list[tuple[str, float, Any]]:
    """What they are called, the seconds that they need, and what does them."""
    plain, kept = STEPS.get(run.model, FEW)
    start = run.engine.seconds + 10
    return [
        *((f"step {number + 1}", 25, lambda: run.step(False)) for number in range(plain)),
        *((f"step {plain + number + 1}", 25, lambda: run.step(True)) for number in range(kept)),
        ("advances and returns", 20, lambda: run.moves(MOVES)),
        ("a killed engine", start, lambda: run.kill_engine("as it moves")),
        ("killed writers", 40, run.kill_writers),
        ("a killed trainer", 30, run.kill_trainer),
        ("another killed engine", start, lambda: run.kill_engine("as it generates")),
    ]


def summary(bench: Bench, name: str) -> None:
    """A row for each way, which `engines` prints as a table."""
    rows = [row for row in bench.rows if row["step"] == name]
    compared = [row for row in rows if row.get("equal") is not None and "way" in row]
    for way in dict.fromkeys(row["way"] for row in rows if "sealed to token" in row):
        moved = [row for row in rows if row.get("way") == way and "sealed to token" in row]
        equal = [row["equal"] for row in compared if row["way"] == way]
        figures = {key: Spread([row[key] for row in moved]) for key in ("sealed to token", "call")}
        for key in ("making", "filling", "sealing", "peak"):
            if values := [row[key] for row in moved if key in row]:
                figures[key] = Spread(values)
        bench.note(step=name, summary=way, **figures, equal=[sum(equal), len(equal)])
