"""The wheel in an environment of its own."""

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


def installed(wheel: Path, directory: Path) -> Path:
    """The site-packages of a new environment in the directory, with the wheel."""
    checked(sys.executable, "-m", "venv", "--without-pip", directory)
    pip = (sys.executable, "-m", "pip", "--python", directory / "bin" / "python")
    checked(*pip, "install", "--no-index", "--no-deps", wheel)
    (site,) = directory.glob("lib/python*/site-packages")
    return site


def python_of(site: Path) -> Path:
    return site.parent.parent.parent / "bin" / "python"
