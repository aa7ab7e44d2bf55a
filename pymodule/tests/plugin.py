"""What pip would leave behind for vLLM to find the plugin."""

from __future__ import annotations

import re
from pathlib import Path

from simulator import PYMODULE


def installed(folder: Path) -> None:
    """Makes libtms look installed in the folder, with pyproject.toml's entry points for vLLM."""
    group = "vllm.general_plugins"
    text = (PYMODULE / "pyproject.toml").read_text()
    found = re.search(rf'\[project\.entry-points\."{group}"\]\n(\w+) = "([\w.:]+)"\n', text)
    assert found
    info = folder / "libtms-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: libtms\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{found[1]} = {found[2]}\n")
