"""What type checkers and help() see of the package."""

from __future__ import annotations

import importlib.util
import os
import pickle
import pydoc
import shutil
import subprocess
import sys
import types
import typing
from pathlib import Path

import pytest
from simulator import HANGS, PYMODULE

import tms

TORCH = """
from typing import Any
from . import cuda as cuda, distributed as distributed, nn as nn
class Tensor:
    def tolist(self) -> Any: ...
"""
"""The types of PyTorch that the package names, for a checker that has no PyTorch."""


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers(checker: str, tmp_path: Path) -> None:
    """They accept each documented use, from outside the checkout, and refuse wrong arguments."""
    give_torch(tmp_path)
    shutil.copy(PYMODULE / "tests" / "typed.py", tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(
        '{"enableTypeIgnoreComments": true, "reportUnnecessaryTypeIgnoreComment": "error"}'
    )
    done = check(checker, "typed.py", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_find_torch_memory_saver(checker: str, tmp_path: Path) -> None:
    """By the link that docs/from-torch_memory_saver.md names."""
    give_torch(tmp_path)
    (tmp_path / "typings").symlink_to(PYMODULE / "dropin")
    program = "from torch_memory_saver import torch_memory_saver as saver\n"
    (tmp_path / "program.py").write_text(program + "saver.pause('weights')\n")
    done = check(checker, "program.py", tmp_path)  # mypy misses parts of PyTorch
    assert "program.py:" not in done.stdout, done.stdout + done.stderr
    (tmp_path / "program.py").write_text(program + "saver.pause(3)\n")
    done = check(checker, "program.py", tmp_path)
    assert "program.py:2" in done.stdout and "pause" in done.stdout, done.stdout + done.stderr


def give_torch(folder: Path) -> None:
    torch = folder / "torch"
    for name, text in {
        "__init__": TORCH,
        "cuda": "class CUDAGraph: ...\nclass Stream: ...\n",
        "distributed": "class ProcessGroup: ...\n",
        "nn": "class Module: ...\n",
    }.items():
        torch.mkdir(exist_ok=True)
        (torch / f"{name}.pyi").write_text(text)


def check(checker: str, file: str, folder: Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed: scripts/check.sh installs it")
    strict = ["--strict", "--cache-dir=/dev/null"] if checker == "mypy" else []
    inherited = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        [sys.executable, "-m", checker, *strict, file],
        cwd=folder,
        env={**inherited, "MYPYPATH": "typings"},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


def test_help_shows_all_that_is_public() -> None:
    text = pydoc.render_doc(tms, renderer=pydoc.plaintext)
    public = [
        name
        for name, value in vars(tms).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    ]
    assert {*public, "__version__"} == {*tms.__all__}
    assert sorted(tms.__all__) == tms.__all__
    for name in public:
        value = getattr(tms, name)
        heading = f"class {name}(" if isinstance(value, type) else f"\n    {name}"
        assert heading in text, name


def test_classes_are_named_as_programs_name_them() -> None:
    classes = [value for value in vars(tms).values() if isinstance(value, type)]
    assert len(classes) > 15
    for value in classes:
        assert (value.__module__, getattr(tms, value.__name__)) == ("tms", value)
    with pytest.raises(tms.TmsError) as caught:
        raise pickle.loads(pickle.dumps(tms.GroupError("lost", rank=1)))
    assert repr(type(caught.value)) == "<class 'tms.GroupError'>"
    assert typing.get_type_hints(tms.Stats)["devices"] == list[tms.DeviceStats]
