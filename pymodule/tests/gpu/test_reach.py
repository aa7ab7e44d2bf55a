"""Programs that know nothing of tms, under `tms run`, paused and resumed by pid at random moments.

Each is compared with an undisturbed run of as many steps, bit for bit. TESTS_PAUSES (30) is how
often the training is paused, TESTS_SWAPS (20) how often two processes are swapped, and
TESTS_SWAP_GIB (15) how much each has. Measurements are printed, also if everything passes.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pytest
from device import MiB, built, loaded_driver, torch_on_gpu
from reaching import (
    PROGRAMS,
    Program,
    Times,
    Witness,
    disturb,
    equal,
    pausable,
    started,
    steer,
    tms,
    undisturbed,
    witness,
)
from simulator import HANGS

torch = torch_on_gpu()

GiB = 1024 * MiB
PAUSES = int(os.environ.get("TESTS_PAUSES", "30"))
SWAPS = int(os.environ.get("TESTS_SWAPS", "20"))
SWAP_GIB = int(os.environ.get("TESTS_SWAP_GIB", "15"))

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def other() -> Iterator[Witness]:
    with witness() as made:
        yield made


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def say(words: str) -> None:
        with capsys.disabled():
            print(f"\n    {words}", flush=True)

    return say


def python(name: str) -> Callable[[Path], list[str | Path]]:
    return lambda _: [sys.executable, PROGRAMS / name]


def with_module(module: str, name: str) -> Callable[[Path], list[str | Path]]:
    def command(_: Path) -> list[str | Path]:
        tried = subprocess.run(
            [sys.executable, "-c", f"import {module}"],
            env=undisturbed(),
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode != 0:
            pytest.skip(f"there is no {module} here: {tried.stderr.splitlines()[-1]}")
        return [sys.executable, PROGRAMS / name]

    return command


def static_runtime(folder: Path) -> list[str | Path]:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("there is no nvcc here")
    program = folder / "with_runtime"
    built(nvcc, "-cudart", "static", "-O2", "-o", program, PROGRAMS / "with_runtime.cu")
    return [program]


def driver(folder: Path) -> list[str | Path]:
    program, source = folder / "with_driver", PROGRAMS / "with_driver.c"
    built("cc", "-std=gnu11", "-O2", "-o", program, source, loaded_driver())
    return [program]


def host_room() -> int:
    """Bytes of host memory available, by the machine and by a control group."""
    with open("/proc/meminfo") as file:
        fields = dict(line.split(":") for line in file)
    room = int(fields["MemAvailable"].split()[0]) << 10
    with contextlib.suppress(OSError, ValueError):
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        room = min(room, limit - used)
    return room


def part_for_jax() -> dict[str, str]:
    """JAX's default of three quarters, or what the host can hold a copy of beside 8 GiB."""
    part = (host_room() - 8 * GiB) / torch.cuda.mem_get_info()[1]
    return {} if part >= 0.75 else {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{part:.2f}"}


@dataclass(frozen=True)
class Case:
    command: Callable[[Path], list[str | Path]]
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ("--backup", "host")
    environment: Callable[[], dict[str, str]] = dict
    pauses: int = 10
    gap: float = 0.3
    wait: float = 20  # seconds that one pause or resume may take
    seconds: float = HANGS


CASES = {
    "torch": Case(
        python("train_torch.py"),
        ("--filler", str((2 * GiB) if PAUSES <= 100 else 256 * MiB)),
        pauses=PAUSES,
        gap=0.3 if PAUSES <= 100 else 0.1,
        seconds=60 if PAUSES <= 30 else 60 + PAUSES,
    ),
    "torch.compile": Case(
        python("train_torch.py"),
        ("--compile",),
        pauses=10 if PAUSES <= 100 else PAUSES,
        gap=0.3 if PAUSES <= 100 else 0.1,
        seconds=180 if PAUSES <= 100 else 180 + PAUSES,
    ),
    # Its memory is copied completely only the first time.
    "jax": Case(
        with_module("jax", "train_jax.py"),
        options=("--backup", "host", "--incremental"),
        environment=part_for_jax,
        pauses=4,
        wait=60,
        seconds=180,
    ),
    "cupy": Case(with_module("cupy", "with_cupy.py")),
    "static cudart": Case(static_runtime),
    "driver": Case(driver),
    "triton": Case(with_module("triton", "with_triton.py")),
    "graphs": Case(python("with_graphs.py")),
    "numba": Case(with_module("numba.cuda.np.arrayobj", "with_numba.py")),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def environment(of: Case, folder: Path) -> dict[str, str]:
    """Later runs reuse what torch.compile and CuPy have compiled."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUPY_CACHE_DIR": str(folder / "cupy"),
        **of.environment(),
    }


def test_paused_by_pid(case: Case, folder: Path, other: Witness, say: Say) -> None:
    """It computes the same as alone, and nine tenths of what it takes can be paused."""
    command, variables = case.command(folder), environment(case, folder)
    with started(
        command,
        0,
        case.arguments,
        options=case.options,
        seconds=case.seconds,
        environment=variables,
    ) as program:
        taken = program.ready()
        could = pausable(program)
        if could < 0.9 * taken:
            raise program.failure(
                f"of {taken >> 20} MiB that the program has taken {could >> 20} MiB are pausable"
            )
        times = disturb(program, other, case.pauses, gap=case.gap, wait=case.wait)
        said = program.end()
    equal(command, said, case.arguments, seconds=case.seconds, environment=variables)
    say(f"{could >> 20} MiB pausable of {taken >> 20} MiB taken; {said[0]} steps; {times}")


def checkpointed(program: Program, *pairs: str) -> tuple[float, float] | str:
    """Seconds of the driver's own checkpoint of a process and of its restore, or the refusal.

    Pairs OLD=NEW of all GPUs say where it is restored.
    """
    with subprocess.Popen(
        [sys.executable, PROGRAMS / "checkpoint.py", str(program.pid), *pairs],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=undisturbed(),
    ) as driver:
        assert driver.stdin is not None and driver.stdout is not None
        answer = json.loads(driver.stdout.readline())
        if "refused" in answer:
            return str(answer["refused"])
        time.sleep(1)
        output, _ = driver.communicate("\n", timeout=60)
        back = json.loads(output)
    if "refused" in back:
        raise program.failure(f"it was checkpointed and cannot be restored: {back['refused']}")
    return answer["out"], back["back"]


TRAINING: list[str | Path] = [sys.executable, PROGRAMS / "train_torch.py"]
CONTENTS: list[str | Path] = [sys.executable, PROGRAMS / "contents.py"]


def pausable_run(
    command: list[str | Path], *arguments: str, seconds: float, retained: str = "0"
) -> contextlib.AbstractContextManager[Program]:
    """Under `tms run`, until it is ended."""
    kept = {"TMS_RETAIN_CPU_BACKUP": retained}
    host = ["--backup", "host"]
    return started(command, 0, arguments, options=host, environment=kept, seconds=seconds)


def test_sixteen_gibibytes_with_contents(other: Witness, say: Say) -> None:
    size = 16 * GiB
    found: dict[str, Times] = {}
    for name, retained in {"tms": "0", "tms, host memory kept": "1"}.items():
        with pausable_run(CONTENTS, str(size), seconds=60, retained=retained) as program:
            assert program.ready() >= size
            found[name] = disturb(program, other, 5, looks=1)
            said = program.end()
        equal(CONTENTS, said, [str(size)], seconds=60)

    with started(CONTENTS, 0, [str(size)], seconds=90) as program:
        program.ready()
        driver = checkpointed(program)
        program.end()
    for name, times in found.items():
        say(f"{name}: {times}; every pause {times.out}, every resume {times.back}")
    say(f"the driver's own checkpoint, out and back: {driver}")
    if isinstance(driver, str):
        return
    for name, times in found.items():
        ratios = driver[0] / statistics.median(times.out), driver[1] / statistics.median(times.back)
        say(f"{name}: {ratios[0]:.1f} times as fast out, {ratios[1]:.1f} times back")
    # Machines differ in seconds. The driver's own checkpoint took 5 to 15 times as long on some.
    for times in found.values():
        assert min(times.out) <= driver[0] / 2
        assert min(times.back) <= driver[1] / 2


def test_two_trainings_take_turns(other: Witness, say: Say) -> None:
    """Two programs, each larger than half of the device.

    The larger part of each is memory whose contents need not be kept: two copies of half a device
    may be more than the host has.
    """
    filler = ["--filler", str(int(0.55 * other.total)), "--filler-tag", "filler"]
    times = Times()

    def pause(program: Program) -> None:
        times.out.append(steer(program, "pause", "--timeout", "30", seconds=30))

    def resume(program: Program) -> None:
        times.back.append(steer(program, "resume", "--wait", "30", seconds=30))

    with pausable_run(TRAINING, "--seed", "1", *filler, seconds=120) as first:
        taken = [first.ready()]
        pause(first)
        with pausable_run(TRAINING, "--seed", "2", *filler, seconds=120) as second:
            taken.append(second.ready())
            for _ in range(5):
                time.sleep(0.7)
                pause(second)
                resume(first)
                time.sleep(0.7)
                pause(first)
                resume(second)
            first.check()
            said_second = second.end()
        resume(first)
        time.sleep(0.5)
        said_first = first.end()
    assert min(taken) > other.total // 2
    equal(TRAINING, said_first, ["--seed", "1"], seconds=60)
    equal(TRAINING, said_second, ["--seed", "2"], seconds=60)
    say(f"{taken[0] >> 30} and {taken[1] >> 30} GiB of {other.total >> 30} GiB; {times}")


def test_swaps(say: Say) -> None:
    """Two processes with SWAP_GIB of contents each, in turn by `tms swap`; host memory is kept."""
    size = str(SWAP_GIB * GiB)
    limit = 60 + 2 * SWAPS
    took = []
    with (
        pausable_run(CONTENTS, size, seconds=limit, retained="1") as first,
        pausable_run(CONTENTS, size, seconds=limit, retained="1") as second,
    ):
        for program in (first, second):
            assert program.ready() >= SWAP_GIB * GiB
        steer(first, "pause", seconds=30)
        programs = second, first
        for number in range(SWAPS):
            begin = time.monotonic()
            answer = tms("swap", *(str(program.pid) for program in programs), seconds=60)
            took.append(time.monotonic() - begin)
            assert all(outcome["ok"] for outcome in answer), (number, answer)
            for program in programs:
                program.check()
            programs = programs[::-1]
            time.sleep(min(0.2, SWAP_GIB / 50))
        steer(programs[1], "resume", seconds=30)
        said = [program.end() for program in (first, second)]
    for words in said:
        equal(CONTENTS, words, [size, "--rest", "0"], seconds=limit)
    later = sorted(took[1:])  # the first makes a host copy
    say(
        f"{SWAPS} swaps of 2 x {SWAP_GIB} GiB: the first {took[0]:.3f} s, then "
        f"{later[len(later) // 2]:.3f} s, at most {later[-1]:.3f} s"
    )
