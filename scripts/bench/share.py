"""Three trainings that share a GPU by themselves, beside one after another and turns by hand.

    scripts/bench.sh share [GIB] [SECONDS]

Each training has GIB (20) of contents and about SECONDS (12) of work of its own; other memory is
held so that 60% of what is left is one training's. Three ways run the same steps: one after
another, by `tms run --share`, and by `tms swap` from here. Losses are compared bit for bit. Then
one program takes 90% of the device step by step while two that share it hold 40% each; all sum up
what they hold. After 13 times SECONDS what still runs is ended, and after 15 times SECONDS this.
Prints the time lost beyond one after another, or what failed and where, and last, JSON; fails if
one way did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import usage  # noqa: F401

TMS = str(Path(__file__).parents[2] / "build" / "bin" / "tms")
ALONE, SHARING = [TMS, "run", "--"], [TMS, "run", "--share", "--"]
SEEDS = (1, 2, 3)
GIB = 1 << 30


def train(seed: int, size: int, seconds: float, steps: int) -> dict[str, Any]:
    """Steps until the time is over, or so many; returns when it began and ended, and its losses."""
    import torch

    input()  # it may begin
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = False
    width = 8192
    layers = size // GIB * 4 - 4  # of 256 MiB; the rest is for what they compute
    weights = [torch.randn(width, width, device="cuda") / width**0.5 for _ in range(layers)]
    data = torch.randn(4096, width, device="cuda")
    torch.cuda.synchronize()
    print("ready", flush=True)
    begin, done, losses = time.time(), 0, []
    while done < steps if steps else time.time() - begin < seconds:
        x = data
        for weight in weights[done % 4 :: 4]:
            x = torch.tanh(x @ weight)
            weight -= 1e-3 * (x.T @ x) / 4096
        losses.append(float(x.square().mean()).hex())  # waits for the device
        done += 1
    return {"begin": begin, "end": time.time(), "losses": losses}


def hold(seed: int, size: int) -> dict[str, Any]:
    """Takes memory in steps of 1 GiB, and sums it up after a line on stdin."""
    import torch

    input()
    begin, count = time.time(), GIB // 4
    held = [
        torch.full((count,), seed + i, dtype=torch.int32, device="cuda") for i in range(size // GIB)
    ]
    torch.cuda.synchronize()
    print("ready", flush=True)
    end = time.time()
    input()
    for i, part in enumerate(held):
        found = int(part.sum(dtype=torch.int64))
        assert found == (seed + i) * count, f"GiB {i} sums up to {found}, not {(seed + i) * count}"
    return {"begin": begin, "end": end}


class Program:
    """This file, run again as one of the functions above, which tells where it failed."""

    def __init__(self, how: list[str], *words: object) -> None:
        self.words = " ".join(map(str, words))
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self.process = subprocess.Popen(
            [*how, sys.executable, __file__, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.words} ended with {self.process.wait()}")
        if line.startswith("{") and "failed" in json.loads(line):
            raise RuntimeError(json.loads(line)["failed"])
        return line

    def ready(self) -> None:
        assert self.line() == "ready\n"

    def said(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.line())
        return said


class Way:
    """What starts programs."""

    def __init__(self) -> None:
        self.programs: list[Program] = []

    def end(self) -> None:
        for program in self.programs:
            program.process.kill()

    def program(self, how: list[str], *words: object) -> Program:
        self.programs.append(Program(how, *words))
        return self.programs[-1]

    def trainings(self, how: list[str], *words: object) -> list[Program]:
        """Python starts at once; the device is not used before go()."""
        return [self.program(how, "--train", seed, *words) for seed in SEEDS]


def one_after_another(way: Way, size: int, seconds: float) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    first = way.program(ALONE, "--train", SEEDS[0], size, seconds, 0)
    first.go()
    first.ready()
    said.append(first.said())
    rest = way.trainings(ALONE, size, 0, len(said[0]["losses"]))[1:]
    first.process.wait()
    for training in rest:
        training.go()
        training.ready()
        said.append(training.said())
        training.process.wait()
    return said


def shared(way: Way, size: int, steps: int) -> list[dict[str, Any]]:
    trainings = way.trainings(SHARING, size, 0, steps)
    for training in trainings:
        training.go()
    for training in trainings:
        training.ready()
    return [training.said() for training in trainings]


def tms(*words: str) -> None:
    subprocess.run([TMS, *words], check=True, stdout=subprocess.DEVNULL)


def by_hand(way: Way, size: int, steps: int, turn: float) -> list[dict[str, Any]]:
    """`tms swap` after each turn, which somebody has to know."""
    trainings = way.trainings(ALONE, size, 0, steps)
    for i, training in enumerate(trainings):
        if i > 0:
            tms("pause", str(trainings[i - 1].process.pid))
        training.go()
        training.ready()
    queue, running = trainings[:-1], trainings[-1]
    since = time.monotonic()
    while running:
        if running.process.poll() is not None:
            if not queue:
                break
            running = queue.pop(0)
            tms("resume", str(running.process.pid), "--wait", "60")
            since = time.monotonic()
        elif queue and time.monotonic() - since > turn:
            following = queue.pop(0)
            words = ["swap", str(running.process.pid), str(following.process.pid)]
            ended = subprocess.run([TMS, *words], capture_output=True, text=True, check=False)
            if ended.returncode:  # it has ended just now
                running.process.wait()
                queue.insert(0, following)
                continue
            queue.append(running)
            running, since = following, time.monotonic()
        time.sleep(0.05)
    return [training.said() for training in trainings]


def step_by_step(way: Way, total: int) -> dict[str, Any]:
    """One takes 90% of the device while two others hold most of it; returns what it said."""
    sizes = [int(part * total) // GIB * GIB for part in (0.4, 0.4, 0.9)]
    holders = [way.program(SHARING, "--hold", 100 * i, size) for i, size in enumerate(sizes)]
    for holder in holders:
        holder.go()
        holder.ready()
    took = 0.0
    for holder in reversed(holders):
        holder.go()
        said = holder.said()
        holder.process.wait()
        took = took or said["end"] - said["begin"]  # of the one that took most
    return {"gib": sizes[-1] / GIB, "seconds": took}


@contextmanager
def ending(until: float) -> Iterator[Way]:
    """One way to run the programs; they end when it does, or when its time is over."""
    way = Way()
    timer = threading.Timer(max(0, until - time.monotonic()), way.end)
    timer.start()
    try:
        yield way
    finally:
        timer.cancel()
        way.end()
        for program in way.programs:
            program.process.wait()


def attempt(name: str, until: float, run: Callable[[Way], Any]) -> Any:
    """What it returns; None, and why on stdout, if it failed."""
    try:
        with ending(until) as way:
            return run(way)
    except Exception:  # noqa: BLE001 (it is told, and other ways go on)
        late = " when its time was over" if time.monotonic() > until else ""
        print(f"{name:20} failed{late}:\n{traceback.format_exc()}", flush=True)
        return None


def main(size: int, seconds: float) -> int:
    import torch

    began = time.monotonic()
    free, total = torch.cuda.mem_get_info()
    room = int(size / 0.6)
    held = torch.empty(free - room, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}: {room / GIB:.1f} GiB of {total / GIB:.1f} are left")
    result: dict[str, Any] = {"gib": size / GIB}
    losses: list[list[str]] = []
    steps, alone = int(seconds), 0.0
    ways: dict[str, Callable[[Way], list[dict[str, Any]]]] = {
        "one after another": lambda way: one_after_another(way, size, seconds),
        "tms run --share": lambda way: shared(way, size, steps),
        "tms swap by hand": lambda way: by_hand(way, size, steps, seconds / 2),
    }
    for name, run in ways.items():
        said = attempt(name, began + 13 * seconds, run)
        if said is None:
            result[name] = None
            continue
        took = max(s["end"] for s in said) - min(s["begin"] for s in said)
        words = f"{took:7.1f} s"
        result[name] = {"seconds": took}
        if not losses:
            losses, steps = [s["losses"] for s in said], len(said[0]["losses"])
        elif losses != [s["losses"] for s in said]:
            words += ", and other losses than before"
            result[name] = None
        if run is ways["one after another"]:
            alone = took
            words += f", of which {sum(s['end'] - s['begin'] for s in said):.1f} s are steps"
        elif alone and result[name]:
            result[name]["lost"] = took / alone - 1
            words += f", {100 * (took / alone - 1):5.1f}% lost"
        print(f"{name:20} {words}", flush=True)
    del held
    torch.cuda.empty_cache()
    name = "90% step by step"
    result[name] = attempt(name, began + 15 * seconds, lambda way: step_by_step(way, total))
    if result[name]:
        print(
            f"{name:20} {result[name]['seconds']:7.1f} s for {result[name]['gib']:.0f} GiB",
            flush=True,
        )
    print(json.dumps({**result, "steps": steps}))
    return 1 if None in result.values() else 0


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[:1] == ["--train"] or given[:1] == ["--hold"]:
        numbers = [float(word) for word in given[1:]]
        try:
            if given[0] == "--train":
                done = train(int(numbers[0]), int(numbers[1]), numbers[2], int(numbers[3]))
            else:
                done = hold(int(numbers[0]), int(numbers[1]))
        except Exception:  # noqa: BLE001 (the parent tells it)
            done = {"failed": traceback.format_exc()}
        print(json.dumps(done), flush=True)
        sys.exit(1 if "failed" in done else 0)
    sizes = [float(word) for word in given] + [20.0, 12.0][len(given) :]
    sys.exit(main(int(sizes[0] * GIB), sizes[1]))
