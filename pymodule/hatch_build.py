"""Puts the library, the command and the simulator into the wheel; it is not built without them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface[Any]):
    """Builds by scripts/wheel/layout.sh, for TMS_WHEEL_MACHINE or this one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # finds the checkout's build/
            return
        script = Path(self.root).parent / "scripts" / "wheel" / "layout.sh"
        if not script.is_file():
            sys.exit(
                "libtms cannot be built from here: libtms.so is made of Go and C that only the "
                "whole repository has. Install a wheel, or run pip install ./pymodule in a clone."
            )
        machine = os.environ.get("TMS_WHEEL_MACHINE", platform.machine())
        if sys.platform != "linux" or machine not in ("x86_64", "aarch64"):
            sys.exit(f"libtms is for Linux on x86_64 and aarch64, not {sys.platform} on {machine}.")
        done = subprocess.run(
            ["bash", script, machine],
            env={"TMS_NO_INSTALL": "1", **os.environ},  # pip installs no compilers
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit("libtms.so was not built, so nothing is installed. Above it says why.")
        layout, tag = done.stdout.splitlines()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        forced = build_data["force_include"]
        forced[str(Path(self.root) / "examples")] = "tms/examples"
        for file in Path(layout).rglob("*"):
            if file.is_file():
                forced[str(file)] = str(file.relative_to(layout))
