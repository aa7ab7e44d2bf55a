"""The tests that the simulator's README gives as an example pass."""

from __future__ import annotations

import subprocess
import sys

from checkout import ROOT
from simulator import BUILD, HANGS


def test_a_program_is_tested_without_a_gpu() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "docs/examples/test_without_gpu.py"],
        cwd=ROOT,
        env={"LD_LIBRARY_PATH": str(BUILD / "sim")},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert "4 passed" in result.stdout, result.stdout + result.stderr
