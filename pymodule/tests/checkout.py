"""Checkouts and machines in which something is lacking."""

from __future__ import annotations

import shutil
from pathlib import Path

from simulator import PYMODULE

ROOT = PYMODULE.parent
BASE = "bash cat chmod dirname env grep head id ln mkdir mktemp printf rm sed sh sort tail tr uname"
NOT_TESTS = shutil.ignore_patterns("tests", ".*")


def path_of(directory: Path, *tools: str) -> str:
    """A PATH with only the base and these tools."""
    directory.mkdir(exist_ok=True)
    for tool in (*BASE.split(), *tools):
        (directory / tool).symlink_to(shutil.which(tool) or f"/usr/local/go/bin/{tool}")
    return str(directory)


def copied(root: Path) -> Path:
    """Copies what the scripts need to build the package."""
    shutil.copytree(ROOT / "scripts", root / "scripts")
    shutil.copytree(PYMODULE, root / "pymodule", ignore=NOT_TESTS)
    shutil.copy(ROOT / "go.mod", root)
    return root
