"""scripts/bench/faults.py: each driver call of a pause and of a resume fails once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from checkout import ROOT
from reaching import undisturbed
from simulator import HANGS

BENCH = ROOT / "scripts" / "bench" / "faults.py"


def bench(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(BENCH), *arguments],
        env=undisturbed(),
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_bench_finds_what_is_wrong() -> None:
    """A library that ends the process, or loses contents or memory, is not called right."""
    assert "found out" in bench("--check")


@pytest.mark.thorough
def test_each_failing_driver_call() -> None:
    """Whichever call fails, contents and memory are right after another try."""
    (row,) = json.loads(bench("tms").splitlines()[-1])
    assert len(row["faults"]) > 40
    assert [fault for fault in row["faults"] if fault[3] != "right"] == []
    assert row["silent"] == 0
