"""Runs programs over the simulator, with the stand-in for PyTorch."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from simulator import HANGS, PYMODULE, environment

HERE = Path(__file__).resolve().parent
PATHS = [PYMODULE, HERE.parent, HERE / "fake", HERE / "clients"]

PRELUDE = """
import torch, tms
from torch_memory_saver import torch_memory_saver as saver
from common import SIZE, SLACK, full, free, holds
torch.cuda.synchronize()
initial = free()
"""


def run(*arguments: str, preloaded: bool, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with `arguments` in a new process; preloaded: with libtms.so."""
    all_variables = {**environment(), "PYTHONPATH": ":".join(map(str, PATHS)), **variables}
    if not preloaded:
        del all_variables["LD_PRELOAD"]
    return subprocess.run(
        [sys.executable, *arguments],
        env=all_variables,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def output(code: str, *, preloaded: bool = True, **variables: str) -> str:
    """Standard output of Python code, which must succeed and leave nothing on stderr."""
    result = run("-c", textwrap.dedent(code), preloaded=preloaded, **variables)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == "", result.stderr
    return result.stdout


def in_mode(mode: str, code: str) -> None:
    """Runs code after PRELUDE with this hook_mode, preloaded if the mode needs it."""
    output(f'{PRELUDE}\nsaver.hook_mode = "{mode}"\n{code}', preloaded=mode == "preload")
