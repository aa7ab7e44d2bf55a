"""Puts the library, the command and the simulator into the wheel; it is not built without them."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Library(BuildHookInterface[Any]):
    """Builds by scripts/wheel/layout.sh, for TMS_WHEEL_MACHINE or this one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":  # finds the checkout's build/
            build_data["shared_scripts"][str(_editable(Path(self.root).parent))] = "tms"
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
        layout, tag = _built(script, machine)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{tag}"
        forced = build_data["force_include"]
        forced[str(Path(self.root) / "examples")] = "tms/examples"
        for name in ("rollout.py", "simulated.py", "steps.py"):
            example = Path(self.root).parent / "docs" / "examples" / name
            forced[str(example)] = f"tms/examples/{name}"
        forced[str(Path(self.root) / "dropin" / "torch_memory_saver")] = (
            "tms/dropin/torch_memory_saver"
        )
        for file in (layout / "tms").rglob("*"):
            if file.is_file():
                forced[str(file)] = str(file.relative_to(layout))
        build_data["shared_scripts"][str(layout / "bin" / "tms")] = "tms"
        build_data["shared_data"][str(layout / "man")] = "share/man/man1"
        materials = layout / "libtms.cdx.json"
        materials.write_text(json.dumps(_materials(layout, self.metadata.version), indent=1))
        build_data.setdefault("sbom_files", []).append(str(materials))


def _editable(checkout: Path) -> Path:
    """A script that runs the command which scripts/build.sh has built last in the checkout."""
    script = checkout / "build" / "editable" / "tms"
    script.parent.mkdir(parents=True, exist_ok=True)
    command = shlex.quote(str(checkout / "build" / "bin" / "tms"))
    script.write_text(_EDITABLE.format(command=command))
    script.chmod(0o755)
    return script


_EDITABLE = """\
#!/bin/sh
command={command}
[ -x "$command" ] || {{ echo "tms: $command is not there: run scripts/build.sh" >&2; exit 1; }}
[ ! -x "${{0%/*}}/python" ] || export _TMS_PYTHON="${{0%/*}}/python"
exec "$command" "$@"
"""


def _built(script: Path, machine: str) -> tuple[Path, str]:
    """The folder of what the script built, and the wheel's platform."""
    done = subprocess.Popen(
        ["bash", script, machine],
        env={"TMS_NO_INSTALL": "1", **os.environ},  # pip installs no compilers
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.stdout and done.stderr
    with done, _terminal() as terminal:
        for line in done.stderr:
            sys.stderr.write(line)
            if line == "== libtms.so\n":
                print("\n  building takes about two minutes; pip -v shows all", file=terminal)
            if line.startswith("== "):
                print(f"  libtms: {line[3:].rstrip()}", file=terminal, flush=True)
        said = done.stdout.read()
    if done.returncode:
        sys.exit("libtms.so was not built, so nothing is installed. Above it says why.")
    layout, tag = said.splitlines()
    return Path(layout), tag


def _terminal() -> IO[str]:
    """The user's terminal, if pip stands before it: pip shows no output before the build's end."""
    if "TMS_WHEEL_MACHINE" not in os.environ and not sys.stderr.isatty():
        try:
            return open("/dev/tty", "w")
        except OSError:
            pass  # there is no terminal
    return open(os.devnull, "w")


def _materials(layout: Path, version: str) -> dict[str, Any]:
    """What is linked into the libraries and the command, as CycloneDX: what they say themselves."""
    found: dict[str, dict[str, str]] = {}

    def add(name: str, version: str, purl: str) -> None:
        url = f"pkg:{purl}@{version}"
        found[url] = {"type": "library", "name": name, "version": version, "purl": url}

    for binary in ("tms/lib/libtms.so", "bin/tms"):
        content = (layout / binary).read_bytes()
        for go in re.findall(rb"\xff Go buildinf:.{19}go([\d.]+)", content, re.DOTALL):
            add("stdlib", go.decode(), "golang/stdlib")
        for name, release in re.findall(rb"\ndep\t(\S+)\t(\S+)", content):
            add(name.decode(), release.decode(), f"golang/{name.decode()}")
        for release in re.findall(rb"leeoniya/uPlot \(v([\d.]+)\)", content):
            add("uplot", release.decode(), "npm/uplot")
    ours = {"type": "library", "name": "libtms", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {**ours, "purl": f"pkg:pypi/libtms@{version}"}},
        "components": sorted(found.values(), key=lambda part: part["purl"]),
    }
