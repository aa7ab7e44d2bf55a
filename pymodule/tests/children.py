"""Child processes, for what a test can't do to its own process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from simulator import HANGS, PYMODULE, environment

TESTS = os.path.dirname(os.path.abspath(__file__))


def run(
    code: str, *arguments: str, preloaded: bool = True, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a new process and returns its outcome.

    Args:
        code: may import cuda and tms; indented as the caller likes.
        preloaded: whether libtms.so is in LD_PRELOAD.
        variables: further environment variables.
    """
    all_variables = environment()
    if not preloaded:
        del all_variables["LD_PRELOAD"]
    all_variables["PYTHONPATH"] = f"{PYMODULE}:{TESTS}"
    all_variables.update(variables)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        env=all_variables,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def output(code: str, *arguments: str, **keywords: object) -> str:
    """Standard output of `run`, which must succeed."""
    result = run(code, *arguments, **keywords)  # type: ignore[arg-type]
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout
