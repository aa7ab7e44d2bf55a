"""What pip would leave behind for engines to find the plugins."""

from __future__ import annotations

import re
from pathlib import Path

from simulator import PYMODULE


def installed(folder: Path) -> None:
    """Makes libtms look installed in the folder, with pyproject.toml's entry points for engines."""
    text = (PYMODULE / "pyproject.toml").read_text()
    points = re.findall(r'\[project\.entry-points\."(.+)"\]\n(\w+ = )"([\w.:]+)"\n', text)
    assert {group for group, _, _ in points} == {"vllm.general_plugins", "sglang.srt.plugins"}
    info = folder / "libtms-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: libtms\nVersion: 0\n")
    (info / "entry_points.txt").write_text(
        "".join(f"[{group}]\n{name}{value}\n" for group, name, value in points)
    )
