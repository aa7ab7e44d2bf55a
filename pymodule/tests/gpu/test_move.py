"""Programs that know nothing of tms, under `tms run`, moved to another GPU and back as they run.

Each is compared with an undisturbed run of as many steps, bit for bit, and leaves nothing on the
GPU that it comes from. TESTS_MOVES (10) is how often each moves, there and back in turn,
TESTS_MOVE_GIB (16) how much the large ones have. The times of each part are printed, also if
everything passes. Two GPUs of one model are needed, with nothing else on them. One program alone:
`-k "computes_on and jax"` (torch, cupy, jax, functions, static), `-k share_memory`.
"""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable

import pytest
from device import torch_on_gpu, used
from reaching import PROGRAMS, TMS, Program, equal, pausable, started, steer, tms, undisturbed
from test_reach import CONTENTS, TRAINING, checkpointed, driver, static_runtime, with_module

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus

if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

MOVES = int(os.environ.get("TESTS_MOVES", "10"))
GIB = int(os.environ.get("TESTS_MOVE_GIB", "16"))
SECONDS = 300 + 30 * MOVES
WAIT = 120.0
MOST_LEFT = 8  # MiB, of the figures of both moments

Moves = list[dict[str, Any]]


def places(program: Program) -> list[str]:
    """The GPUs on which it is, by UUID, in the order of its own devices."""
    (listed,) = tms("ps", str(program.pid), seconds=WAIT)
    by_device = {d["device"]: d["uuid"] for d in listed["devices"] + listed["stats"]["devices"]}
    return [by_device[device] for device in sorted(by_device)]


def move(program: Program, there: str, before: dict[str, int], *others: int) -> dict[str, Any]:
    """Moves it there, with others; nothing is left where it was. One on two GPUs changes them."""
    here = places(program)
    where = ["--to", there]
    if len(here) == 2:  # JAX has a context on each
        where = ["--map", f"{here[0]}={here[1]},{here[1]}={here[0]}"]
    begin = time.monotonic()
    try:
        pids = map(str, (program.pid, *others))
        answer, *rest = tms("move", *pids, *where, seconds=WAIT)
    except (AssertionError, subprocess.TimeoutExpired) as failed:
        raise program.failure(str(failed)) from None
    done: dict[str, Any] = {**answer["move"], "outside_seconds": time.monotonic() - begin}
    done["direct"] = sum(each.get("moved_bytes", 0) for each in (answer, *rest))
    if done.get("with", []) != list(others):
        raise program.failure(f"{others} were to move with it: {answer}")
    now, after = used(), places(program)
    way = {gpu["from"]: gpu["to"] for gpu in done["gpus"]}
    if after != [way[gpu] for gpu in here]:
        raise program.failure(f"it was on {here}, {answer}, and tms ps says {after}")
    if len(here) == 1 and (
        now[here[0]] > before[here[0]] + MOST_LEFT or now[there] <= before[there]
    ):
        raise program.failure(f"before the program {before}, after its move {now} MiB: {answer}")
    return done


def home_and_away() -> tuple[str, str]:
    """The UUIDs of device 0 and of another of the same model."""
    first, *others = (torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count()))
    same = [other for other in others if other.name == first.name]
    if not same:
        pytest.skip("two GPUs of one model are needed")
    return f"GPU-{first.uuid}", f"GPU-{same[0].uuid}"


def in_turn(home: str, away: str) -> list[str]:
    """Where each move goes."""
    return ([away, home] * MOVES)[:MOVES]


def there_and_back(
    command: list[str | Path],
    arguments: tuple[str, ...],
    environment: dict[str, str],
    others: Callable[[Program], list[int]] = lambda _: [],
) -> tuple[Moves, int]:
    """Moves a program, with others, at random moments.

    Returns what each move has done, and the program's bytes.
    """
    home, away = home_and_away()
    moments, done = random.Random(str(command)), []
    before = used()
    with started(
        command,
        0,
        arguments,
        options=("--backup", "host"),
        seconds=SECONDS,
        environment=environment,
    ) as program:
        program.ready()
        size, along = pausable(program), others(program)
        for there in in_turn(home, away):
            time.sleep(moments.uniform(0, 0.5))
            program.check()
            done.append(move(program, there, before, *along))
        said = program.end()
    equal(command, said, arguments, seconds=SECONDS, environment=environment)
    return done, size


def tell(capsys: pytest.CaptureFixture[str], name: str, size: int, done: Moves) -> None:
    """Prints the median and the extremes of each part, in seconds."""
    words = [f"{name}, {size / 2**30:.1f} GiB, {len(done)} moves"]
    for part in ("pause", "checkpoint", "restore", "resume", "outside"):
        times = [d[f"{part}_seconds"] for d in done]
        middle = statistics.median(times)
        words.append(f"{part} {middle:.2f} ({min(times):.2f} to {max(times):.2f})")
    words.append(f"{min(d['direct'] for d in done) / 2**30:.1f} GiB from GPU to GPU")
    with capsys.disabled():
        print("\n    " + ", ".join(words), flush=True)


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("torch, graphs and streams", with_module("torch", "train_torch.py")),
        ("cupy", with_module("cupy", "with_cupy.py")),
        ("jax", with_module("jax", "train_jax.py")),
        ("the driver's functions, two contexts", driver),
        ("a static libcudart", static_runtime),
    ],
    ids=["torch", "cupy", "jax", "functions", "static"],
)
def test_it_computes_on(
    name: str,
    command: Callable[[Path], list[str | Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.05",
        "CUPY_CACHE_DIR": str(tmp_path / "cupy"),
    }
    done, size = there_and_back(command(tmp_path), (), environment)
    tell(capsys, name, size, done)


SHARING: list[str | Path] = [sys.executable, PROGRAMS / "share_torch.py"]


def sharer_of(program: Program) -> list[int]:
    """The process that shares its memory. Neither moves without the other."""
    (listed,) = tms("ps", str(program.pid), seconds=WAIT)
    (other,) = listed["sharers"]
    _, away = home_and_away()
    for alone in (program.pid, other):
        with pytest.raises(AssertionError, match="which does not move along"):
            tms("move", str(alone), "--to", away, seconds=WAIT)
    return [other]


@pytest.mark.parametrize("by", ["torch", "handle"])
def test_two_that_share_memory(by: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A process and one that has its memory open, by torch.multiprocessing or CUDA's handles."""
    done, size = there_and_back(SHARING, ("--by", by), {}, sharer_of)
    tell(capsys, f"two that share memory by {by}", size, done)


def test_much_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Torch with graphs and streams, beside TESTS_MOVE_GIB of contents, summed up at the end."""
    done, size = there_and_back(TRAINING, ("--filler", str(GIB << 30)), {})
    assert size >= GIB << 30
    for way in done:  # with room for them, all contents go there directly
        (gpu,) = way["gpus"]
        assert way["direct"] >= min(gpu["room_bytes"], size) // (GIB << 30) * (GIB << 30), way
    tell(capsys, "torch", size, done)


def test_the_drivers_checkpoint_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """As many GiB without a pause before: tms has no part in it."""
    home, away = home_and_away()
    others = [f"{gpu}={gpu}" for gpu in used() if gpu not in (home, away)]
    with started(CONTENTS, 0, (str(GIB << 30),), seconds=SECONDS) as program:
        program.ready()
        before = used()
        done = checkpointed(program, f"{home}={away}", f"{away}={home}", *others)
        after = used()
        program.end()
    assert not isinstance(done, str), done
    assert after[away] - before[away] > GIB << 10
    assert after[home] < before[home] - (GIB << 10)
    with capsys.disabled():
        print(f"\n    the driver alone, {GIB} GiB: checkpoint {done[0]:.2f}, restore {done[1]:.2f}")


def test_a_gpu_is_emptied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One command moves three programs, and nothing of them is left."""
    home, away = home_and_away()
    small: list[tuple[list[str | Path], tuple[str, ...]]]
    small = [(TRAINING, ()), (CONTENTS, (str(1 << 30),)), (driver(tmp_path), ())]
    before = used()
    with contextlib.ExitStack() as ends:
        programs = [
            ends.enter_context(
                started(command, 0, rest, options=("--backup", "host"), seconds=SECONDS)
            )
            for command, rest in small
        ]
        for program in programs:
            program.ready()
        begin = time.monotonic()
        answers = tms("move", "--all", "--from", home, "--to", away, seconds=WAIT)
        took = time.monotonic() - begin
        assert {a["pid"] for a in answers if a["ok"]} == {program.pid for program in programs}
        assert used()[home] <= before[home] + MOST_LEFT
        assert [places(program) for program in programs] == [[away]] * 3
        said = [program.end() for program in programs]
    with ThreadPoolExecutor() as undisturbed_runs:
        runs = [
            undisturbed_runs.submit(equal, command, found, rest, seconds=SECONDS)
            for (command, rest), found in zip(small, said)
        ]
        for run in runs:
            run.result()
    with capsys.disabled():
        print(f"\n    three programs at once: {took:.2f} s", flush=True)


def test_a_command_that_is_killed() -> None:
    """At random moments: a resume makes the program go on, wherever it then is."""
    home, away = home_and_away()
    rest, moments = (str(2 << 30),), random.Random(1)
    before = used()
    with started(CONTENTS, 0, rest, options=("--backup", "host"), seconds=SECONDS) as program:
        program.ready()
        for there in in_turn(home, away):
            command = subprocess.Popen(
                [TMS, "move", str(program.pid), "--to", there], env=undisturbed()
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                command.wait(moments.uniform(0, 2))
            command.kill()
            command.wait()
            steer(program, "resume", seconds=WAIT)
            program.check()
        (here,) = places(program)
        move(program, away if here == home else home, before)
        said = program.end()
    equal(CONTENTS, said, rest, seconds=SECONDS)


def test_only_one_gpu_is_visible(capsys: pytest.CaptureFixture[str]) -> None:
    """It moves to a GPU that it does not see, and back."""
    home, away = home_and_away()
    before, rest = used(), (str(1 << 30),)
    with started(
        CONTENTS,
        0,
        rest,
        options=("--backup", "host"),
        seconds=SECONDS,
        environment={"CUDA_VISIBLE_DEVICES": away},
    ) as program:
        program.ready()
        assert places(program) == [away]
        done = [move(program, there, before) for there in (home, away)]
        said = program.end()
    equal(CONTENTS, said, rest, seconds=SECONDS)
    tell(capsys, "only one GPU is visible", 1 << 30, done)
