"""Stream-ordered memory of an unchanged program under `tms run`, beside a run without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from device import built, torch_on_gpu
from reaching import PROGRAMS, TMS, undisturbed

torch = torch_on_gpu()

MOST = float(os.environ.get("TESTS_PAIR", "1.3"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    if not Path(nvcc).exists():
        pytest.skip("there is no nvcc here")
    made = tmp_path_factory.mktemp("order") / "with_order"
    built(nvcc, "-std=c++17", "-O2", "-o", made, PROGRAMS / "with_order.cu", "-lcuda")
    return made


def said(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env=undisturbed(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def beside(program: Path, what: str) -> tuple[str, str]:
    """What the program says by itself, and under `tms run`."""
    return said(program, what), said(TMS, "run", "--", program, what)


def test_a_pair_costs_little(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The best of five runs by turns: a virtual machine is not always as fast."""
    rounds = [beside(program, "pairs") for _ in range(5)]
    plain, ours = (
        [min(float(text.split()[size]) for text in texts) for size in range(2)]
        for texts in zip(*rounds)
    )
    ratios = [o / p for o, p in zip(ours, plain)]
    with capsys.disabled():
        print(
            f"\n    a pair, small and large: {ours} us, without tms {plain}: {ratios}", flush=True
        )
    assert max(ratios) <= MOST


def test_a_program_may_run_ahead(program: Path) -> None:
    """No allocation waits for the seconds of work before it, on its own stream or another."""
    for text in beside(program, "ahead"):
        slowest, whole, last = (float(word) for word in text.split())
        assert slowest < 0.9
        assert whole > 3.5
        assert last == 4


def test_pools_are_what_they_are(program: Path) -> None:
    plain, ours = beside(program, "pools")
    assert ours == plain
    assert "fault" not in ours
    assert "used: 8388608" in ours
    assert "reserved: 0" in ours


def test_streams_have_numbers_of_their_own(program: Path) -> None:
    numbers = said(program, "streams").split()
    assert len(set(numbers)) == len(numbers) == 8
