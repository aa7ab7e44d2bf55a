"""Wheels in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from simulator import HANGS


def checked(*command: str | Path, **variables: str) -> str:
    """Standard output of a command that knows nothing of the repository, and has no preload."""
    hidden = ("LD_PRELOAD", "PYTHONPATH", "TMS_LIBRARY")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        command,
        env={**inherited, **variables},
        cwd="/",  # python -m and -c import from the current folder
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def installed(directory: Path, *wheels: Path) -> Path:
    """The site-packages of a new environment in the directory, with the wheels."""
    checked(sys.executable, "-m", "venv", "--without-pip", directory)
    (site,) = directory.glob("lib/python*/site-packages")
    if wheels:
        pip(site, "install", *wheels)
    return site


def pip(site: Path, *arguments: str | Path) -> str:
    """Runs pip in an environment, without an index and without programs (no Go, no gcc)."""
    python = python_of(site)
    command = (sys.executable, "-m", "pip", "--python", python, *arguments)
    return checked(*command, PATH=str(python.parent), PIP_NO_INDEX="1", PIP_NO_COMPILE="1")


def python_of(site: Path) -> Path:
    return site.parent.parent.parent / "bin" / "python"
