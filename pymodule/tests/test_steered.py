"""A program that knows nothing of tms, paused by pid over the simulator: see gpu/test_reach.py."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from reaching import PROGRAMS, Witness, disturb, equal, pausable, started, undisturbed, witness
from simulator import BUILD, HANGS


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Witness]:
    """On a device that the test's processes share."""
    monkeypatch.setenv("CUDASIM_SHARED", f"steered-{os.getpid()}")
    with witness() as made:
        yield made


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    path = str(tmp_path / "with_driver")
    library = BUILD / "sim" / "libcuda.so.1"
    source = PROGRAMS / "with_driver.c"
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-DWITHOUT_KERNELS"]
    call = ["cc", *flags, "-o", path, source, library]
    subprocess.run(call, check=True, env=undisturbed())
    return [path]


CYCLES = 10 if os.environ.get("TESTS_FULL") == "1" else 3


@pytest.mark.parametrize("more", [[], ["--pool", "caching", "--no-inherit"]])
def test_paused_by_pid(program: list[str], other: Witness, more: list[str]) -> None:
    with started(program, 0, options=more, seconds=HANGS) as running:
        taken = running.ready()
        assert pausable(running) >= 0.9 * taken
        times = disturb(running, other, CYCLES, gap=0.05, seconds=0.1, wait=HANGS)
        said = running.end()
    assert len(times.out) == len(times.back) == CYCLES
    equal(program, said, seconds=HANGS)
