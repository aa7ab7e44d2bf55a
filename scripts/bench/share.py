"""Trainings that share a GPU by themselves, beside one after another and turns by hand.

    scripts/bench.sh share [GIB] [SECONDS] [--trainings N] [--beside] [--whole]

Each of N (3) trainings has GIB (20) of contents and about SECONDS (12) of work of its own; other
memory is held so that 60% of what is left is one training's, with --whole none. Three ways run the
same steps: one after another, by `tms run --share`, and by `tms swap` from here. Losses are
compared bit for bit. Then one program takes 90% of the device step by step while two that share it
hold 40% each; all sum up what they hold. With --beside only the first two ways run, at the same
time: one after another on a second GPU, as soon as the first training there has told how many
steps there are. After (4 N + 1) times SECONDS what still runs is ended, and after (4 N + 3) times
SECONDS this; with --beside after (2 N + 2) times. Prints the time lost beyond one after another, or
what failed and where, and last, JSON; fails if one way did.

Each training's own time is told as soon as it has ended. Contents go to host memory: on a virtual
machine that has just started, the first pauses take several times as long as later ones.

On two H200, in nine minutes: scripts/bench.sh share 60 45 --trainings 5 --beside --whole
"""

from __future__ import annotations

import argparse
import ctypes
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
GIB = 1 << 30


def train(seed: int, size: int, seconds: float, steps: int) -> dict[str, Any]:
    """Trains for `seconds`, or for `steps` if not 0; returns its begin, its end and its losses."""
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
    return {"begin": begin, "end": time.time(), "losses": losses, "pauses": pauses()}


def pauses() -> int:
    """How often this program was paused so far."""
    stats = ctypes.create_string_buffer(1 << 20)
    ctypes.CDLL(None).tms_stats_json(stats, ctypes.c_size_t(len(stats)))
    return sum(device["pauses"]["count"] for device in json.loads(stats.value)["devices"])


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

    def __init__(self, how: list[str], device: str, *words: object) -> None:
        self.words = " ".join(map(str, words))
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        environment["CUDA_VISIBLE_DEVICES"] = device
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
        print(f"  {self.words}: {said['end'] - said['begin']:.1f} s", flush=True)
        return said


class Way:
    """What starts programs, for trainings with these seeds, on a device."""

    def __init__(self, seeds: range, device: str) -> None:
        self.programs: list[Program] = []
        self.seeds, self.device = seeds, device

    def end(self) -> None:
        for program in self.programs:
            program.process.kill()

    def program(self, how: list[str], *words: object) -> Program:
        self.programs.append(Program(how, self.device, *words))
        return self.programs[-1]

    def trainings(self, how: list[str], *words: object) -> list[Program]:
        """Python starts at once; the device is not used before go()."""
        return [self.program(how, "--train", seed, *words) for seed in self.seeds]


def one_after_another(
    way: Way, size: int, seconds: float, tell: Callable[[int], None]
) -> list[dict[str, Any]]:
    """Tells how many steps the first one did in the time; the others do as many."""
    said: list[dict[str, Any]] = []
    first = way.program(ALONE, "--train", way.seeds[0], size, seconds, 0)
    first.go()
    first.ready()
    said.append(first.said())
    tell(len(said[0]["losses"]))
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
def ending(way: Way, until: float) -> Iterator[Way]:
    """One way to run the programs; they end when it does, or when its time is over."""
    timer = threading.Timer(max(0, until - time.monotonic()), way.end)
    timer.start()
    try:
        yield way
    finally:
        timer.cancel()
        way.end()
        for program in way.programs:
            program.process.wait()


def attempt(name: str, until: float, way: Way, run: Callable[[Way], Any]) -> Any:
    """What it returns; None, and why on stdout, if it failed."""
    try:
        with ending(way, until):
            return run(way)
    except Exception:  # noqa: BLE001 (it is told, and other ways go on)
        late = " when its time was over" if time.monotonic() > until else ""
        print(f"{name:20} failed{late}:\n{traceback.format_exc()}", flush=True)
        return None


class Comparison:
    """What the ways took, each beside one after another."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}
        self.losses: list[list[str]] = []
        self.alone = 0.0

    def add(self, name: str, said: list[dict[str, Any]] | None) -> None:
        """Prints a line, unless this way has failed and said why."""
        self.result[name] = None
        if said is None:
            return
        took = max(s["end"] for s in said) - min(s["begin"] for s in said)
        steps, losses = sum(s["end"] - s["begin"] for s in said), [s["losses"] for s in said]
        of = self.result[name] = {"seconds": took, "pauses": [s["pauses"] for s in said]}
        words = f"{took:7.1f} s"
        if not self.losses:
            self.losses, self.alone = losses, took
            words += f", of which {steps:.1f} s are steps"
        elif losses != self.losses:
            words += ", and other losses than before"
            self.result[name] = None
        else:
            of["lost"] = took / self.alone - 1
            words += f", {100 * of['lost']:5.1f}% lost, paused {of['pauses']} times"
        print(f"{name:20} {words}", flush=True)


def main(asked: argparse.Namespace) -> int:
    import torch

    began, size, seconds, count = time.monotonic(), asked.size, asked.seconds, asked.trainings
    until = began + (2 * count + 2 if asked.beside else 4 * count + 1) * seconds
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    free, total = torch.cuda.mem_get_info()
    room = free if asked.whole else int(size / 0.6)
    held = torch.empty(free - room, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}: {room / GIB:.1f} GiB of {total / GIB:.1f} are left")
    print(f"{count} trainings of {size / GIB:.0f} GiB and {seconds:.0f} s", flush=True)
    compared = Comparison()
    known = threading.Event()
    steps = 0

    def tell(found: int) -> None:
        nonlocal steps
        steps = found
        known.set()

    def go(name: str, run: Callable[[Way], Any], device: int = 0) -> Any:
        return attempt(name, until, Way(range(1, count + 1), devices[device]), run)

    first, said = "one after another", None

    def alone(device: int) -> None:
        nonlocal said
        said = go(first, lambda way: one_after_another(way, size, seconds, tell), device)
        known.set()

    baseline = threading.Thread(target=alone, args=[int(asked.beside)])
    baseline.start()
    if not asked.beside:
        baseline.join()
    known.wait()
    ways: dict[str, Callable[[Way], list[dict[str, Any]]]] = {
        "tms run --share": lambda way: shared(way, size, steps),
        "tms swap by hand": lambda way: by_hand(way, size, steps, seconds / 2),
    }
    for name in list(ways)[: 1 if asked.beside else 2]:
        found = go(name, ways[name]) if steps else None
        baseline.join()
        if first not in compared.result:
            compared.add(first, said)
        compared.add(name, found)
    del held
    torch.cuda.empty_cache()
    result = compared.result
    if not asked.beside:
        name, until = "90% step by step", until + 2 * seconds
        result[name] = go(name, lambda way: step_by_step(way, total))
        if result[name]:
            took, gib = result[name]["seconds"], result[name]["gib"]
            print(f"{name:20} {took:7.1f} s for {gib:.0f} GiB", flush=True)
    print(json.dumps({"gib": size / GIB, **result, "steps": steps}))
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("size", nargs="?", type=lambda gib: int(float(gib) * GIB), default="20")
    parser.add_argument("seconds", nargs="?", type=float, default=12.0)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    if options.trainings < 2 or options.size < 2 * GIB or not options.seconds > 0:
        parser.error("give two trainings or more, 2 GiB or more to each, and some time")
    sys.exit(main(options))
