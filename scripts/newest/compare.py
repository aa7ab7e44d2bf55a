"""Says of each thing that tms relies on in other packages whether newer wheels still have it.

    compare.py FOLDER      FOLDER has wheels, unpacked side by side

What tms relies on: the names, calls, methods and hooks in pymodule/tms (needs.py), the variables
that pymodule/tms, internal/doctor and the documents name, and table.txt. Nothing is imported.
Exit status 1: something has gone, or no longer takes what tms gives it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import signatures
from needs import Need
from wheels import Found, Wheel, bound, exported, undefined

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

KEPT = "as we rely on"
_DRIVER = re.compile(rb"cu[A-Z][A-Za-z0-9_]{4,}")
_CUDA = re.compile(r"cu(da)?[A-Z][A-Za-z0-9_]*")
_OTHERS = re.compile("EGL|Egl|GL[A-Z]|VDPAU|cuFile")
"""Functions of NVIDIA's other interfaces, which tms leaves alone or has another table for."""


class Table:
    """The lines of table.txt."""

    def __init__(self, file: Path) -> None:
        self.lines: list[list[str]] = []
        """Each with the lines that are as good."""
        self.optional: dict[str, str] = {}
        for line in file.read_text().splitlines():
            kind, _, rest = line.strip().partition(" ")
            if kind == "or":
                self.lines[-1].append(rest)
            elif kind == "optional":
                name, _, reason = rest.partition(" ")
                self.optional[name] = reason
            elif kind and not kind.startswith("#"):
                self.lines.append([line.strip()])

    def about(self, package: str) -> Iterator[list[str]]:
        """The lines of a package."""
        for lines in self.lines:
            where = lines[0].partition(" ")[2]
            if package == max(filter(where.startswith, needs.PACKAGES), key=len, default=""):
                yield lines


class Comparison:
    """An unpacked wheel beside what is relied on."""

    def __init__(self, wheel: Wheel, table: Table, root: Path) -> None:
        self.wheel, self._table, self._root = wheel, table, root

    def of_need(self, need: Need) -> str:
        """What has become of something that code relies on."""
        found = self.wheel.find(need.what)
        if found is None:
            private = need.method is not None and need.method.name.startswith("_")
            return KEPT if private else self._gone(need.what)
        why = ""
        if need.method is not None and need.method.name.startswith("_"):
            why = f"it has a {need.method.name!r} itself now"
        elif not found.unread:
            why = self._misfit(need, found)
        if why:
            return f"changed: {why}"
        return f"{KEPT}, though .{found.unread} cannot be read" if found.unread else KEPT

    def of_variable(self, need: Need) -> str:
        """What has become of a variable of the environment."""
        folder = self.wheel.root / need.package
        name = re.compile(rf"\b{need.what}\b".encode())
        for pattern in ("**/*.py", "lib/libc10*.so"):
            for file in folder.glob(pattern):
                if name.search(file.read_bytes()):
                    return KEPT
        return self._gone(need.what)

    def of_lines(self, lines: list[str]) -> str:
        """What has become of a line of the table, or of those that are as good."""
        first = ""
        for line in lines:
            kind, _, rest = line.partition(" ")
            said = getattr(self, f"_{kind.replace('-', '_')}")(rest)
            if said == KEPT:
                return KEPT
            first = first or said
        return first

    def _misfit(self, need: Need, found: Found) -> str:
        lists = self.wheel.parameters_of(found)
        if need.call is not None and lists:
            return signatures.refusal(need.call, lists)
        if lists is None or len(lists) > 1:
            return ""
        if need.method is not None:
            return signatures.misfit(lists[0], _plain(need.method))
        if need.hook is not None:  # the function itself comes first, and then `self`
            ours = signatures.without_first(need.hook.args, 2 if found.of_class else 1)
            return signatures.misfit(lists[0], ours)
        return ""

    def _gone(self, name: str) -> str:
        reason = self._table.optional.get(name)
        return f"{KEPT}: it may be missing ({reason})" if reason else "gone"

    def _name(self, name: str) -> str:
        return "gone" if self.wheel.find(name) is None else KEPT

    def _text(self, rest: str) -> str:
        file, _, words = rest.partition(" ")
        text = self.wheel.text_of(file)
        if text is None:
            return f"gone: there is no {file}"
        return KEPT if words in text else f"changed: {file} does not say it"

    def _string(self, rest: str) -> str:
        return self._of_libraries(rest, lambda file: {*map(_shown, self.wheel.strings(file))})

    def _binds(self, rest: str) -> str:
        return self._of_libraries(rest, undefined)

    def _exports(self, rest: str) -> str:
        return self._of_libraries(rest, exported)

    def _of_libraries(self, rest: str, names_of: Callable[[Path], set[str]]) -> str:
        pattern, *names = rest.split()
        files = sorted(self.wheel.root.glob(pattern))
        if not files:
            return f"gone: there is no {pattern}"
        for file in files:
            has = names_of(file)
            lacks = [name for name in names if name not in has]
            if lacks:
                return f"gone: {file.name} has no {', '.join(lacks)}"
        return KEPT

    def _functions(self, pattern: str) -> str:
        return self._known(pattern, lambda file: {*filter(_CUDA.fullmatch, undefined(file))})

    def _looks_up(self, pattern: str) -> str:
        def named(file: Path) -> set[str]:
            return {*map(_shown, filter(_DRIVER.fullmatch, self.wheel.strings(file)))}

        return self._known(pattern, named)

    def _known(self, pattern: str, names_of: Callable[[Path], set[str]]) -> str:
        files = [*self.wheel.root.glob(pattern)]
        if not files:
            return f"gone: there is no {pattern}"
        names = {name for file in files for name in names_of(file)}
        listed = (self._root / "forward" / "calls" / "functions.txt").read_text().split()
        new = {name for name in names if not _OTHERS.search(name)} - {*listed}
        new -= self._table.optional.keys()
        return (
            f"changed: {', '.join(sorted(new))} not in forward/calls/functions.txt" if new else KEPT
        )

    def _like(self, rest: str) -> str:
        name, file, own, *left_out = rest.split()
        theirs = self.wheel.find(name)
        if theirs is None or not theirs.nodes:
            return "gone"
        (ours,) = (
            node
            for node in ast.parse((self._root / file).read_text()).body
            if isinstance(node, ast.ClassDef) and node.name == own
        )
        mine: _Methods = {}
        for node in ours.body:
            if isinstance(node, ast.FunctionDef):
                mine.setdefault(node.name, node)  # a property's reader comes before its setter
        mine.update(_other_names(ours, mine))
        theirs_own = theirs.nodes[-1]
        if not isinstance(theirs_own, ast.ClassDef):
            return "changed: it is no class"
        attributes = {name for node in ours.body for name in bound(node)} - mine.keys()
        for node in theirs_own.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if node.name in {*left_out, *attributes} or _of_property(node):
                continue
            if node.name not in mine:
                return f"changed: it has {node.name!r}, which {own} lacks"
            why = signatures.misfit(_plain(node), _plain(mine[node.name]))
            if why:
                return f"changed: {node.name!r}: {why}"
        return KEPT


def _plain(node: ast.FunctionDef) -> ast.arguments:
    return signatures.without_first(node.args)


def _of_property(node: ast.FunctionDef) -> bool:
    return any("setter" in ast.unparse(one) for one in node.decorator_list)


_Methods = dict[str, ast.FunctionDef]


def _other_names(of: ast.ClassDef, methods: _Methods) -> _Methods:
    named: _Methods = {}
    for node in of.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name) and node.value.id in methods:
                    named[target.id] = methods[node.value.id]
    return named


def _shown(text: bytes) -> str:
    return text.decode(errors="replace")


def versions(folder: Path) -> dict[str, str]:
    """The packages that are unpacked, with the names of their wheels."""
    found: dict[str, list[str]] = {}
    for info in sorted(folder.glob("*.dist-info")):
        wheel = info.name.removesuffix(".dist-info").replace("-", " ")
        found.setdefault(re.sub("[-_]cuda.*| .*", "", wheel), []).append(wheel)
    return {name: ", ".join(wheels) for name, wheels in found.items()}


def findings(folder: Path, root: Path, table: Path) -> Iterator[tuple[str, str, str, str]]:
    """For each thing: the package, the thing, what relies on it, and what has become of it."""
    lines_of = Table(table)
    compared = Comparison(Wheel(folder), lines_of, root)
    plugins = root / "pymodule" / "tms"
    named = [*plugins.rglob("*.py"), *(root / "docs").glob("*.md")]
    named += (root / "internal" / "doctor").glob("*.go")
    derived = needs.of_sources(plugins)
    variables = [*needs.variables(sorted(named))]
    for package in versions(folder):
        for need in derived:
            if need.package == package:
                kind = "a call of " if need.call else ""
                yield package, f"{kind}{need.what}", need.by, compared.of_need(need)
        for need in variables:
            if need.package == package:
                yield package, need.what, need.by, compared.of_variable(need)
        for lines in lines_of.about(package):
            yield package, lines[0], "table.txt", compared.of_lines(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="of this repository")
    parser.add_argument("--table", type=Path, default=HERE / "table.txt")
    arguments = parser.parse_args()
    wheels = versions(arguments.folder)
    if not wheels:
        print(f"{arguments.folder} has no unpacked wheel", file=sys.stderr)
        return 2
    kept, lost = dict.fromkeys(wheels, 0), dict.fromkeys(wheels, 0)
    for package, what, by, said in findings(arguments.folder, arguments.root, arguments.table):
        (kept if said.startswith(KEPT) else lost)[package] += 1
        print(f"{package}: {what} ({by}): {said}")
    for package, named in wheels.items():
        print(f"== {named}: {kept[package]} as we rely on, {lost[package]} changed or gone")
    return int(any(lost.values()))


if __name__ == "__main__":
    sys.exit(main())
