"""Programs that know nothing of tms, under `tms run`, moved to another GPU and back meanwhile.

Each is compared with an undisturbed run of as many steps, bit for bit, and leaves nothing on the
GPU that it comes from. TMS_TEST_MOVES (5) is how often each goes there and back, TMS_TEST_MOVE_GIB
(16) how much the large one has. The times of each part are printed, also if everything passes. Two
GPUs of one model are needed, with nothing else on them.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable

import pytest
from device import torch_on_gpu
from reaching import PROGRAMS, Program, equal, pausable, started, tms
from test_reach import driver, static_runtime, with_module

torch = torch_on_gpu()

if torch.cuda.device_count() < 2:
    pytest.skip("two GPUs are needed", allow_module_level=True)

MOVES = int(os.environ.get("TMS_TEST_MOVES", "5"))
GIB = int(os.environ.get("TMS_TEST_MOVE_GIB", "16"))
SECONDS = 300 + 60 * MOVES
WAIT = 120.0
MOST_LEFT = 8  # MiB, of the figures of both moments

Moves = list[dict[str, Any]]


def used() -> dict[str, int]:
    """MiB in use on each GPU, by UUID, according to NVML."""
    figures = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {uuid: int(mib) for uuid, mib in (line.split(", ") for line in figures.splitlines())}


def places(program: Program) -> list[str]:
    """The GPUs on which it is, by UUID, in the order of its own devices."""
    (listed,) = tms("ps", str(program.pid), seconds=WAIT)
    by_device = {d["device"]: d["uuid"] for d in listed["devices"] + listed["stats"]["devices"]}
    return [by_device[device] for device in sorted(by_device)]


def move(program: Program, there: str, before: dict[str, int]) -> dict[str, Any]:
    """Moves it there, from where nothing of it is left; one on two GPUs changes them."""
    here = places(program)
    where = ["--to", there]
    if len(here) == 2:  # JAX has a context on each
        where = ["--map", f"{here[0]}={here[1]},{here[1]}={here[0]}"]
    begin = time.monotonic()
    try:
        (answer,) = tms("move", str(program.pid), *where, seconds=WAIT)
    except (AssertionError, subprocess.TimeoutExpired) as failed:
        raise program.failure(str(failed)) from None
    done: dict[str, Any] = {**answer["move"], "outside_seconds": time.monotonic() - begin}
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


def there_and_back(
    command: list[str | Path], arguments: tuple[str, ...], environment: dict[str, str]
) -> tuple[Moves, int]:
    """Moves a program at random moments; returns what each move has done, and its bytes."""
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
        size = pausable(program)
        for there in [away, home] * MOVES:
            time.sleep(moments.uniform(0, 0.5))
            program.check()
            done.append(move(program, there, before))
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


def test_much_memory(capsys: pytest.CaptureFixture[str]) -> None:
    """Torch with graphs and streams, beside so many GiB of contents, which the end sums up."""
    command: list[str | Path] = [sys.executable, PROGRAMS / "train_torch.py"]
    done, size = there_and_back(command, ("--filler", str(GIB << 30)), {})
    assert size >= GIB << 30
    tell(capsys, "torch", size, done)


@pytest.mark.parametrize("visible", [0, 1])
def test_only_one_gpu_is_visible(visible: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What the driver makes of it: a move, or an error after which the program goes on."""
    command: list[str | Path] = [sys.executable, PROGRAMS / "train_torch.py"]
    with started(
        command,
        0,
        options=("--backup", "host"),
        seconds=SECONDS,
        environment={"CUDA_VISIBLE_DEVICES": str(visible)},
    ) as program:
        program.ready()
        here = places(program)
        try:
            tms("move", str(program.pid), "--to", str(1 - visible), seconds=WAIT)
            outcome = f"it was moved from {here} to {places(program)}"
        except AssertionError as refused:
            outcome = str(refused).splitlines()[-1]
            assert "it goes on as before" in outcome
            assert places(program) == here
        said = program.end()
    equal(command, said, seconds=SECONDS)
    with capsys.disabled():
        print(f"\n    CUDA_VISIBLE_DEVICES={visible}: {outcome}", flush=True)
