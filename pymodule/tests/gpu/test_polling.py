"""Programs that know nothing of tms, and whose threads ask the device whether it is done.

The driver's checkpoint removes pages that such calls read, and the calls do not wait for its lock:
without the gate about every fourth JAX process dies of it (docs/what-stays.md). Each program runs
under `tms run`, loses all of its part of the GPU by `tms pause --everything` many times, and ends
with the results of an undisturbed run, bit for bit. TESTS_EVERYTHING (6) is how often; a program
in JAX is started again after 20 times. All run side by side.
"""

from __future__ import annotations

import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from device import built, loaded_driver, torch_on_gpu
from reaching import PROGRAMS, Times, equal, started, steer

torch = torch_on_gpu()

CYCLES = int(os.environ.get("TESTS_EVERYTHING", "6"))
RESTART = 20  # cycles of one process of JAX
SECONDS = 60 + 15 * CYCLES
WAIT = 60.0


@dataclass(frozen=True)
class Case:
    program: str
    arguments: tuple[str, ...] = ()
    cycles: int = CYCLES


CASES = {
    "jax": Case("train_jax.py", cycles=CYCLES * 2 // 3),
    "jax, one call": Case("train_jax.py", ("--calls", "one"), CYCLES * 2 // 3),
    "jax, waited for": Case("train_jax.py", ("--calls", "waited for"), CYCLES * 2 // 3),
    "cupy": Case("with_cupy.py"),
    "torch, graphs": Case("train_torch.py"),
    "triton": Case("with_triton.py"),
    "four threads that poll": Case("with_polls.c"),
}


@pytest.fixture(scope="module")
def polls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program, source = tmp_path_factory.mktemp("polling") / "with_polls", PROGRAMS / "with_polls.c"
    built("cc", "-O2", "-pthread", "-o", program, source, loaded_driver())
    return program


def lose_everything(case: Case, command: list[str | Path], environment: dict[str, str]) -> Times:
    """Runs the program as often as the number of cycles takes, and compares each run."""
    times = Times()
    moments = random.Random(case.program)
    most = RESTART if case.program.endswith("jax.py") else case.cycles
    while len(times.out) < case.cycles:
        with started(
            command,
            0,
            case.arguments,
            options=("--backup", "host"),
            seconds=SECONDS,
            environment=environment,
        ) as program:
            program.ready()
            for _ in range(min(most, case.cycles - len(times.out))):
                time.sleep(moments.uniform(0, 0.2))
                program.check()
                out = steer(program, "pause", "--everything", "--timeout", str(WAIT), seconds=WAIT)
                times.out.append(out)
                time.sleep(moments.uniform(0, 0.2))
                program.check()
                times.back.append(steer(program, "resume", "--wait", str(WAIT), seconds=WAIT))
            said = program.end()
        equal(command, said, case.arguments, seconds=SECONDS, environment=environment)
    return times


def test_no_process_is_lost(
    polls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.02",
        "TRITON_CACHE_DIR": str(tmp_path / "triton"),
        "CUPY_CACHE_DIR": str(tmp_path / "cupy"),
    }

    def run(name: str) -> Times:
        case = CASES[name]
        command: list[str | Path] = (
            [polls] if case.program.endswith(".c") else [sys.executable, PROGRAMS / case.program]
        )
        times = lose_everything(case, command, environment)
        with capsys.disabled():
            print(f"\n    {name}: {times}", flush=True)
        return times

    with ThreadPoolExecutor(len(CASES)) as pool:
        running = {name: pool.submit(run, name) for name in CASES}
    failed = {name: ran.exception() for name, ran in running.items() if ran.exception()}
    assert not failed, "\n\n".join(f"{name}: {why}" for name, why in failed.items())
