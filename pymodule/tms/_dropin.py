"""Finds which package torch_memory_saver this Python imports, for `tms doctor`."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib import metadata
from pathlib import Path

from ._version import version

_NAME = "torch_memory_saver"
_SWITCH = "libtms-torch-memory-saver"
_SWITCH_ON = (
    'pip install "libtms[torch-memory-saver]", from files pip install --no-index '
    "libtms_torch_memory_saver-*.whl, in a clone pip install ./pymodule/dropin"
)
_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "dropin", _PACKAGE.parent / "dropin")
"""Where ours is: in an installed libtms, and in a checkout."""


def finding() -> str:
    """The finding as JSON; "" where nothing of that name is installed."""
    severity, what, do = _examine()
    found = {"severity": severity, "id": _NAME, "what": f"{sys.executable} {what}", "do": do}
    return json.dumps(found) if what else ""


def _examine() -> tuple[str, str, str]:
    spec = importlib.util.find_spec(_NAME)  # imports nothing
    switch, genuine = _installed(_SWITCH), _installed(_NAME)
    if spec is None or spec.origin is None:  # nothing, or a folder without __init__.py
        folders = ", ".join(spec.submodule_search_locations or []) if spec else ""
        if genuine:
            what = f"cannot import {_NAME} {genuine.version}: its files are gone"
            return "warning", what, _again(genuine)
        if folders:
            what = f"imports nothing of {folders}, which has no __init__.py"
            return "warning", what, f"remove {folders}"
        if switch:
            what = f"finds no {_NAME}, although {_SWITCH} is installed"
            return "warning", what, _again(switch, f"libtms=={version}")
        return "ok", "", ""
    origin = Path(spec.origin)
    if origin.resolve().parent.parent in _FOLDERS:
        what = f"imports {_NAME} from libtms {version}"
        if genuine is None:
            return "ok", what, ""
        what += f"; {_NAME} {genuine.version} is installed too, and not imported"
        return "ok", what, f"to import that one, pip uninstall {_SWITCH}" if switch else ""
    if genuine is None or Path(str(genuine.locate_file(f"{_NAME}/__init__.py"))) != origin:
        what = f"imports {_NAME} from {origin}, which no installed distribution has"
        return "note", what, "take its folder out of PYTHONPATH to import an installed one"
    gone = [
        str(f)
        for f in genuine.files or []
        if f.suffix != ".pyc" and not Path(str(f.locate())).exists()
    ]
    if gone:
        what = f"imports a damaged {_NAME} {genuine.version}, which lacks {', '.join(gone)}"
        return "warning", what, _again(genuine)
    what = f"imports the genuine {_NAME} {genuine.version}"
    if switch:
        what += f", although {_SWITCH} is installed: {origin.parents[1]} comes first on sys.path"
        return "warning", what, f"pip uninstall {_NAME}, or take that folder out of PYTHONPATH"
    return "ok", what, f"to import that of libtms, {_SWITCH_ON}"


def _installed(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _again(damaged: metadata.Distribution, *others: str) -> str:
    names = (*others, f"{damaged.metadata['Name']}=={damaged.version}")
    return f"pip install --force-reinstall --no-deps {' '.join(names)}"
