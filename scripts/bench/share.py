"""Three trainings that share a GPU by themselves, beside one after another and turns by hand.

    scripts/bench.sh share [GIB] [SECONDS]

Each training has GIB (20) of contents and about SECONDS (12) of work of its own; other memory is
held so that 60% of what is left is one training's. Three ways run the same steps: one after
another, by `tms run --share`, and by `tms swap` from here. Losses are compared bit for bit. Prints
the time lost beyond the sum of the work and, last, JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import usage  # noqa: F401

TMS = str(Path(__file__).parents[2] / "build" / "bin" / "tms")
SEEDS = (1, 2, 3)
GIB = 1 << 30


def train(seed: int, size: int, seconds: float, steps: int) -> None:
    """Steps until the time is over, or so many; prints when it began and ended, and its losses."""
    import torch

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
    print(json.dumps({"begin": begin, "end": time.time(), "losses": losses}), flush=True)


class Training:
    def __init__(self, how: list[str], seed: int, size: int, seconds: float, steps: int) -> None:
        own = [sys.executable, __file__, "--train", str(seed), str(size), str(seconds), str(steps)]
        environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        self.process = subprocess.Popen(
            [*how, *own], stdout=subprocess.PIPE, text=True, env=environment
        )
        self.lines = self.process.stdout

    def ready(self) -> None:
        assert self.lines
        assert self.lines.readline() == "ready\n"

    def said(self) -> dict[str, Any]:
        assert self.lines
        said: dict[str, Any] = json.loads(self.lines.readline())
        assert self.process.wait() == 0
        return said


def one_after_another(size: int, seconds: float, steps: int = 0) -> list[dict[str, Any]]:
    said = []
    for seed in SEEDS:
        training = Training([TMS, "run", "--"], seed, size, seconds, steps)
        training.ready()
        said.append(training.said())
        steps = steps or len(said[0]["losses"])
    return said


def shared(size: int, steps: int) -> list[dict[str, Any]]:
    trainings = [Training([TMS, "run", "--share", "--"], s, size, 0, steps) for s in SEEDS]
    for training in trainings:
        training.ready()
    return [training.said() for training in trainings]


def tms(*words: str) -> None:
    subprocess.run([TMS, *words], check=True, stdout=subprocess.DEVNULL)


def by_hand(size: int, steps: int, turn: float) -> list[dict[str, Any]]:
    """`tms swap` after each turn, which somebody has to know."""
    trainings: list[Training] = []
    for seed in SEEDS:
        if trainings:
            tms("pause", str(trainings[-1].process.pid))
        trainings.append(Training([TMS, "run", "--"], seed, size, 0, steps))
        trainings[-1].ready()
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


def lost(said: list[dict[str, Any]], work: float) -> tuple[float, float]:
    """From the first step to the last, and its part beyond the work."""
    took = max(s["end"] for s in said) - min(s["begin"] for s in said)
    return took, took / work - 1


def main(size: int, seconds: float) -> None:
    import torch

    free, total = torch.cuda.mem_get_info()
    room = int(size / 0.6)
    held = torch.empty(free - room, dtype=torch.uint8, device="cuda")
    print(f"{torch.cuda.get_device_name()}: {room / GIB:.1f} GiB of {total / GIB:.1f} are left")
    alone = one_after_another(size, seconds)
    steps = len(alone[0]["losses"])
    work = sum(s["end"] - s["begin"] for s in alone)
    ways = {"one after another": alone, "tms run --share": shared(size, steps)}
    ways["tms swap by hand"] = by_hand(size, steps, seconds / 2)
    del held
    result: dict[str, Any] = {"gib": size / GIB, "steps": steps, "work_seconds": work}
    for name, said in ways.items():
        assert [s["losses"] for s in said] == [s["losses"] for s in alone], f"{name}: losses differ"
        took, part = lost(said, work)
        result[name] = {"seconds": took, "lost": part}
        print(f"{name:20} {took:7.1f} s for {work:.1f} s of work, {100 * part:5.1f}% lost")
    print(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
    else:
        given = sys.argv[1:]
        main(
            int(float(given[0]) * GIB) if given else 20 * GIB,
            float(given[1]) if given[1:] else 12,
        )
