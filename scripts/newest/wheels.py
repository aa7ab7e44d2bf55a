"""Finds names in the files of an unpacked wheel, without importing it."""

from __future__ import annotations

import ast
import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Union

Function = Union[ast.FunctionDef, ast.AsyncFunctionDef]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Found(NamedTuple):
    """Where a name leads."""

    module: str
    nodes: list[Any]
    """Its definitions; several for overloads. Empty for a module."""
    unread: str = ""
    """The last parts of the name, if they follow an object of an unknown class."""
    of_class: bool = False


class Wheel:
    """A folder with unpacked wheels."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def find(self, dotted: str) -> Found | None:
        """Where a dotted name leads, or None if there is nothing of that name."""
        return self._find(dotted, frozenset())

    def parameters_of(self, found: Found) -> list[ast.arguments] | None:
        """The parameters of each overload, without `self`; None if they cannot be read."""
        lists = []
        for node in found.nodes:
            if isinstance(node, _FUNCTIONS):
                lists.append(_without_self(node) if found.of_class else node.args)
            elif isinstance(node, ast.ClassDef):
                made = self._member(found.module, node, "__init__", frozenset())
                made = made or self._member(found.module, node, "__new__", frozenset())
                for one in made.nodes if made else []:
                    if isinstance(one, _FUNCTIONS):
                        lists.append(_without_self(one))
        return lists or None

    def text_of(self, pattern: str) -> str | None:
        """The text of the files that a pattern names, or None if there are none."""
        files = sorted(self.root.glob(pattern))
        return "\n".join(file.read_text() for file in files) if files else None

    @functools.cache  # noqa: B019  one wheel lives as long as the program
    def strings(self, file: Path) -> frozenset[bytes]:
        """The texts in a binary that end with a zero."""
        return frozenset(file.read_bytes().split(b"\0"))

    def _module(self, dotted: str) -> Path | None:
        path = self.root.joinpath(*dotted.split("."))
        files = (path / "__init__.py", path.with_suffix(".py"), path / "__init__.pyi")
        return next((f for f in (*files, path.with_suffix(".pyi")) if f.exists()), None)

    @functools.cache  # noqa: B019
    def _tree(self, dotted: str) -> list[ast.stmt]:
        file = self._module(dotted)
        return list(_statements(ast.parse(file.read_text()).body)) if file else []

    def _find(self, dotted: str, seen: frozenset[tuple[str, str]]) -> Found | None:
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            module = ".".join(parts[:length])
            if self._module(module):
                rest = parts[length:]
                return self._within(module, rest, seen) if rest else Found(module, [])
        return None

    def _within(
        self, module: str, parts: list[str], seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        if (module, parts[0]) in seen:
            return None
        seen |= {(module, parts[0])}
        nodes, fallback = [], None
        for node in self._tree(module):
            if isinstance(node, ast.ImportFrom):
                source = self._source(module, node)
                for alias in node.names:
                    if alias.name == "*" or (alias.asname or alias.name) == parts[0]:
                        name = parts[0] if alias.name == "*" else alias.name
                        found = self._find(".".join([source, name, *parts[1:]]), seen)
                        if found:
                            return found
                        if alias.name != "*" and not self._module(source.partition(".")[0]):
                            fallback = Found(module, [node], ".".join(parts[1:]))
            elif parts[0] in bound(node):
                nodes.append(node)
        if not nodes:
            return self._compiled(module, parts) or fallback
        return self._below(Found(module, nodes), parts[1:], seen)

    def _below(
        self, found: Found, parts: list[str], seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        for index, part in enumerate(parts):
            node = found.nodes[-1]
            below = None
            if not isinstance(node, ast.ClassDef):
                node_class = self._class_of(found.module, node, seen)
                if node_class is None:
                    return found._replace(unread=".".join(parts[index:]))
                found = node_class
                node = found.nodes[-1]
            if isinstance(node, ast.ClassDef):
                below = self._member(found.module, node, part, seen)
            if below is None:
                return None
            if below.unread:
                return below._replace(unread=".".join(parts[index:]))
            found = below
        return found

    def _member(
        self, module: str, node: ast.ClassDef, name: str, seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        own = [one for one in _statements(node.body) if name in bound(one)]
        for method in node.body:
            if isinstance(method, _FUNCTIONS):
                for one in ast.walk(method):
                    if isinstance(one, (ast.Assign, ast.AnnAssign)) and name in _of_self(one):
                        own.append(one)
        if own:
            return Found(module, list(own), of_class=True)
        unread = None
        for base in [*node.bases, *(key.value for key in node.keywords if key.arg == "metaclass")]:
            name_of_base = ast.unparse(base).partition("[")[0]
            if name_of_base in ("object", "ABC", "ABCMeta", "Generic", "Protocol", "type"):
                continue
            above = self._within(module, name_of_base.split("."), seen)
            classes = above.nodes if above else []
            if above and classes and isinstance(classes[-1], ast.ClassDef):
                found = self._member(above.module, classes[-1], name, seen)
                if found and not found.unread:
                    return found
                unread = unread or found
            else:
                unread = Found(module, [node], name)
        return unread

    def _class_of(
        self, module: str, node: ast.AST, seen: frozenset[tuple[str, str]]
    ) -> Found | None:
        """The class of an object, by its annotation or by the call that makes it."""
        written: ast.expr | None = getattr(node, "annotation", None)
        value = getattr(node, "value", None)
        if written is None and isinstance(value, ast.Call):
            written = value.func
        if written is None:
            return None
        text = ast.unparse(written).strip("'\"").replace("Optional[", "").rstrip("]")
        name = text.partition(" |")[0]
        if not name.replace(".", "").isidentifier():
            return None
        found = self._within(module, name.split("."), seen)
        if found and found.nodes and isinstance(found.nodes[-1], ast.ClassDef):
            return found
        return None

    def _compiled(self, module: str, parts: list[str]) -> Found | None:
        """A name that C++ gives to PyTorch, by its stubs or by the text in its library."""
        if module == "torch":
            for stubs in ("torch._C", "torch._C._VariableFunctions"):
                nodes = [node for node in self._tree(stubs) if parts[0] in bound(node)]
                if nodes:
                    return self._below(Found(stubs, list(nodes)), parts[1:], frozenset())
        if module in ("torch", "torch._C"):
            for file in self.root.glob("torch/lib/libtorch_python.so"):
                if parts[0].encode() in self.strings(file):
                    return Found(module, [], ".".join(parts[1:]))
        return None

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        file = self._module(module)
        up = node.level - (1 if file and file.stem == "__init__" else 0)
        parts = module.split(".")
        above = parts[: len(parts) - up] if up else parts
        return ".".join([*above, *([node.module] if node.module else [])])


def undefined(file: Path) -> set[str]:
    """The functions that a library takes from others."""
    return _symbols(file, "--undefined-only")


def exported(file: Path) -> set[str]:
    """The functions that a library has for others."""
    return _symbols(file, "--defined-only")


def _symbols(file: Path, which: str) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", which, str(file)], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines() if line}


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, those in `if`, `try` and `with` included."""
    for node in body:
        yield node
        for name in ("body", "orelse", "finalbody"):
            if isinstance(node, (ast.If, ast.Try, ast.With, ast.For)):
                yield from _statements(getattr(node, name, []))
        if isinstance(node, ast.Try):
            for handler in node.handlers:
                yield from _statements(handler.body)


def bound(node: ast.stmt) -> set[str]:
    """The names that a statement gives a meaning."""
    if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Import):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    every = [one for target in targets for one in ast.walk(target)]
    return {one.id for one in every if isinstance(one, ast.Name)}


def _of_self(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id in ("self", "cls")
    }


def _without_self(node: Function) -> ast.arguments:
    if any(ast.unparse(one) == "staticmethod" for one in node.decorator_list):
        return node.args
    arguments = node.args
    return ast.arguments(
        posonlyargs=arguments.posonlyargs[1:],
        args=arguments.args if arguments.posonlyargs else arguments.args[1:],
        vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs,
        kw_defaults=arguments.kw_defaults,
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )
