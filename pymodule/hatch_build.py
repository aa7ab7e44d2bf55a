"""Puts the library into the wheel, as scripts/wheel.sh has laid it out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface[Any]):
    """Without TMS_WHEEL_LAYOUT, the directory with the files, the wheel is of Python alone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        layout = os.environ.get("TMS_WHEEL_LAYOUT")
        if not layout or version == "editable":
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{os.environ['TMS_WHEEL_PLATFORM']}"
        for file in Path(layout).rglob("*.so"):
            build_data["force_include"][str(file)] = str(file.relative_to(layout))
