"""What pymodule/tms uses of other packages, from its source: names, calls, methods, hooks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("torch", "vllm", "sglang", "torch_memory_saver", "cupy", "jax", "triton")

VARIABLE = re.compile(r"\b((?:PYTORCH|VLLM|SGLANG)_[A-Z0-9_]+[A-Z0-9])\b")


class Need(NamedTuple):
    """One thing that is relied on."""

    package: str
    what: str
    """A dotted name, or a variable of the environment."""
    by: str
    """The file and line that relies on it."""
    call: ast.Call | None = None
    """The call that it must take."""
    method: ast.FunctionDef | None = None
    """The method of tms that takes its place."""
    hook: ast.FunctionDef | None = None
    """The function of tms that is called in its place, with it as the first argument."""


def of_sources(folder: Path) -> list[Need]:
    """What the Python files of a folder need."""
    found: dict[tuple[str, ...], Need] = {}
    for file in sorted(folder.rglob("*.py")):
        for need in _File(file, folder).needs():
            shown = ast.dump(need.call) if need.call else ""
            found.setdefault((need.what, shown, str(need.method or need.hook or "")), need)
    return list(found.values())


def variables(files: list[Path]) -> Iterator[Need]:
    """The variables of other packages that files name."""
    owners = {"PYTORCH": "torch", "VLLM": "vllm", "SGLANG": "sglang"}
    seen = set()
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), 1):
            for name in VARIABLE.findall(line):
                if name not in seen:
                    seen.add(name)
                    yield Need(owners[name.split("_")[0]], name, f"{file.name}:{number}")


_Names = dict[str, "str | None"]
_Later = list[tuple[ast.FunctionDef, _Names]]


class _File:
    """One file, read with what its names stand for: "torch.cuda" for `cuda = torch.cuda`."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._tree = ast.parse(path.read_text())
        self._shown = str(path.relative_to(folder.parent))
        self._texts: dict[str, str] = {}
        self._own: dict[str, str | None] = {}  # attributes of self
        self._found: list[Need] = []

    def needs(self) -> list[Need]:
        names: _Names = {}
        self._functions = {
            node.name: node for node in self._tree.body if isinstance(node, ast.FunctionDef)
        }
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                target = node.targets[0]
                if isinstance(target.value, ast.Name) and target.value.id == "self":
                    self._own[target.attr] = self._dotted(node.value, {})
        self._block(self._tree.body, names)
        return self._found

    def _block(self, body: list[ast.stmt], names: _Names) -> None:
        later: _Later = []
        for node in body:
            self._statement(node, names, later)
        for node, inside in later:  # functions see the module's names, however late these come
            self._block(node.body, {**names, **inside})

    def _statement(
        self, node: ast.stmt, names: _Names, later: list[tuple[ast.FunctionDef, _Names]]
    ) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
            inside: _Names = {one.arg: None for one in every}
            for part in (*node.decorator_list, *filter(None, [arguments, node.returns])):
                self._expression(part, names)
            later.append((node, inside))  # type: ignore[arg-type]
        elif isinstance(node, ast.ClassDef):
            for base in node.bases:
                self._expression(base, names)
                if above := self._dotted(base, names):
                    for method in node.body:
                        if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                            self._add(f"{above}.{method.name}", method, method=method)
            for inner in node.body:
                self._statement(inner, names, later)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _of_packages(alias.name):
                    self._add(alias.name, node)
                    root = alias.name.partition(".")[0]
                    names[alias.asname or root] = alias.name if alias.asname else root
        elif isinstance(node, ast.ImportFrom):
            if not node.level and node.module and _of_packages(node.module):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                    self._add(f"{node.module}.{alias.name}", node)
        else:
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.stmt):
                    self._statement(part, names, later)
                elif isinstance(part, ast.ExceptHandler):
                    for inner in part.body:
                        self._statement(inner, names, later)
                else:
                    self._expression(part, names)
            self._assigned(node, names)

    def _assigned(self, node: ast.stmt, names: _Names) -> None:
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AnnAssign) and node.value:
            targets = [node.target]
        else:
            return
        for target in targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts))
            for one, value in pairs:
                if isinstance(one, ast.Name) and value is not None:
                    names[one.id] = self._dotted(value, names)
                    text = self._text(value)
                    if text is not None:
                        self._texts[one.id] = text

    def _expression(self, node: ast.AST, names: _Names) -> None:
        if isinstance(node, ast.Lambda):
            names = {**names, **{one.arg: None for one in node.args.args}}
        dotted = self._dotted(node, names)
        if dotted and dotted.partition(".")[0] in PACKAGES:
            self._add(dotted, node)
            if not isinstance(node, ast.Call):
                return
        if isinstance(node, ast.Call):
            called = self._dotted(node.func, names)
            if called and "." in called:
                self._add(called, node, call=node)
        if isinstance(node, ast.Dict):
            self._hooks(node)
        for part in ast.iter_child_nodes(node):
            self._expression(part, names)

    def _hooks(self, node: ast.Dict) -> None:
        """Hooks: functions of this file by the dotted names that they are called in place of."""
        for key, value in zip(node.keys, node.values):
            text = self._text(key) if key else None
            if text and _of_packages(text) and isinstance(value, ast.Name):
                self._add(text, node, hook=self._functions.get(value.id))

    def _dotted(self, node: ast.AST | None, names: _Names) -> str | None:
        """What an expression stands for, if it is another package or a part of one."""
        if isinstance(node, ast.Name):  # `torch` is PyTorch, wherever it comes from
            return "torch" if node.id == "torch" else names.get(node.id)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "self":
                return "torch" if node.attr == "_torch" else self._own.get(node.attr)
            above = self._dotted(node.value, names)
            return f"{above}.{node.attr}" if above else None
        if isinstance(node, ast.BoolOp):
            return self._dotted(node.values[-1], names)
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "sys.modules":
            return self._module(node.slice)
        if isinstance(node, ast.Call) and node.args:
            called = ast.unparse(node.func)
            if called in ("importlib.import_module", "sys.modules.get", "module"):
                return self._module(node.args[0])
            if called in ("private", "_private.private"):
                name = self._text(node.args[1])
                return f"torch.{name}" if name else None
        return None

    def _module(self, node: ast.AST) -> str | None:
        text = self._text(node)
        return text if text and _of_packages(text) else None

    def _text(self, node: ast.AST | None) -> str | None:
        """A string that is written as such, of the file's own constants."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.Name):
            return self._texts.get(node.id)
        if isinstance(node, ast.JoinedStr):
            parts = [
                self._text(part.value if isinstance(part, ast.FormattedValue) else part)
                for part in node.values
            ]
            return None if None in parts else "".join(map(str, parts))
        return None

    def _add(
        self,
        what: str,
        node: ast.AST,
        call: ast.Call | None = None,
        method: ast.FunctionDef | None = None,
        hook: ast.FunctionDef | None = None,
    ) -> None:
        by = f"{self._shown}:{getattr(node, 'lineno', 0)}"
        self._found.append(Need(what.partition(".")[0], what, by, call, method, hook))


def _of_packages(name: str) -> bool:
    root, dot, _ = name.partition(".")
    return root in PACKAGES and re.fullmatch(r"[\w.]+", name) is not None
