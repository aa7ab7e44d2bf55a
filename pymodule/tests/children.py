"""Child processes, for what a test can't do to its own process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator import DROPIN, HANGS, PYMODULE, environment

TESTS = Path(__file__).resolve().parent


def becomes(user: int) -> bool:
    """Whether a process can become this user: root can, where its user namespace has the user."""
    try:
        subprocess.run(["true"], user=user, group=user, extra_groups=[], check=True)
    except OSError:
        return False
    return True


def python(
    *arguments: str | Path,
    preloaded: bool = True,
    paths: Sequence[Path] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a new process on the simulator, and returns its outcome.

    Args:
        arguments: of Python; what it runs may import tms and the modules beside this one.
        preloaded: whether libtms.so is in LD_PRELOAD.
        paths: of further modules.
        variables: further environment variables.
    """
    inherited = environment()
    if not preloaded:
        del inherited["LD_PRELOAD"]
    inherited["PYTHONPATH"] = ":".join(map(str, (PYMODULE, DROPIN, TESTS, *paths)))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def run(code: str, *arguments: str, **keywords: Any) -> subprocess.CompletedProcess[str]:
    """Runs Python code, which is indented as the caller likes; the rest is as for `python`."""
    return python("-c", textwrap.dedent(code), *arguments, **keywords)


def output(code: str, *arguments: str, quiet: bool = False, **keywords: Any) -> str:
    """Standard output of `run`, which must succeed, and leave nothing on stderr if `quiet`."""
    result = run(code, *arguments, **keywords)
    assert result.returncode == 0, f"exit {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert not (quiet and result.stderr), result.stderr
    return result.stdout
