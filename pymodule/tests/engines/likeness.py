"""The files of an engine that is installed, which the stand-ins in fake/ are like."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

HERE = Path(__file__).resolve().parent
FAKE = HERE / "fake"
DROPIN = HERE.parent / "dropin"
NEWEST = ROOT / "scripts" / "newest"


def sources(package: str) -> Path:
    """The package's folder, in that which VLLM_SOURCES or SGLANG_SOURCES names, or as installed."""
    variable = f"{package.upper()}_SOURCES"
    if named := os.environ.get(variable):
        return Path(named) / package
    spec = importlib.util.find_spec(package)
    if not spec or not spec.origin:
        pytest.skip(f"{package} is not installed, and {variable} names no folder with it")
    return Path(spec.origin).parent


def lost(package: str, folder: Path) -> list[str]:
    """The lines of scripts/newest/table.txt that do not hold for a package in this folder."""
    sys.path.insert(0, str(NEWEST))
    compare: Any = importlib.import_module("compare")
    table = compare.Table(NEWEST / "table.txt")
    compared = compare.Comparison(compare.Wheel(folder.parent), table, ROOT)
    said = [(lines[0], compared.of_lines(lines)) for lines in table.about(package)]
    return [f"{line}: {what}" for line, what in said if not what.startswith(compare.KEPT)]


def methods(file: Path, name: str) -> dict[str, list[tuple[str, Any]]]:
    """Of a class in a file: the parameters of each method, and their defaults."""
    (found,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == name
    )
    signatures = {}
    for node in found.body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            defaults = [ast.unparse(default) for default in node.args.defaults]
            required = [""] * (len(names) - len(defaults))
            signatures[node.name] = list(zip(names, required + defaults))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:  # another name of a method
                if isinstance(target, ast.Name) and node.value.id in signatures:
                    signatures[target.id] = signatures[node.value.id]
    return signatures


def parameters(file: Path, name: str) -> Any:
    (found,) = (
        node
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    arguments = found.args
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}
