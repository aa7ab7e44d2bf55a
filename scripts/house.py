#!/usr/bin/env python3
"""Counts what a reader of this tree must hold, and fails for what must not be there.

    scripts/house.py [--lower]

It prints a figure a line, with the wanted figure in brackets. It fails if a package is not on the
map of CONTRIBUTING.md, if a word is used more often than the list there allows, if a comment or a
document names what does not exist, or if files of C in preload use each other in a circle.
pymodule/tests/test_house.py makes the same checks. With --lower it first lowers the numbers of the
list to how often the words still occur.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("cmd", "forward", "internal", "preload", "pymodule", "region", "vmm")
FOLDERS = (*PRODUCT, "docs", "scripts")
MAPPED = ("internal", "preload", "vmm")
READ = (".go", ".c", ".h", ".S", ".cu", ".cpp", ".py", ".html", ".sh", ".md")
GENERATED = ("build", "__pycache__", "node_modules", "venv")
METRIC = "tms_"  # what cmd/tms/metrics.go puts before the name of each metric
REACH = "preload/gate/reach"  # a library of its own, which has some of libtms.so's names, too
TOGETHER = "preload/goruntime"  # its files may use each other in circles
STRING = re.compile(r'"(?:\\.|[^"\\\n])*"')
GLOBAL = re.compile(  # what a file of C defines for others
    r"^(?:(?:HIDDEN|EXPORT|HOT|AT_LOAD|__attribute__\(\(\w+\)\)) )+(?!static)"
    r"[^;{}=()\n]*?(\w+)(?:\[\w+\])*"
    r"(?: __attribute__\(\(.*\)\))?(?:\([^;{}]*\)\s*\{| =|;|,)",
    re.MULTILINE,
)
USED = re.compile(r"(?<![.>\w])[A-Za-z_]\w*")  # but for fields
OWN = re.compile(r"^(?:static|OUT_OF_LINE)\b[^;{}=()\n]*?(\w+)(?:\(|\[|;| =)", re.MULTILINE)
LISTED = re.compile(r"^\| ([\w, ]+) \| (\d+) \| ([\d.]+) \|.*$", re.MULTILINE)
TELEGRAM = re.compile(r"; [\w<>-]+: ")

# Documents that tell what was: they have old names, or old words.
OLD_NAMES = ("CHANGELOG.md", "docs/renamed.md")
OLD_WORDS = (*OLD_NAMES, "docs/benchmarks.md", "docs/measurements/")

# Back-quoted names of other projects, which no code or test of this tree uses.
ELSEWHERE = {
    "ExpandableSegment",
    "MemAllocator",
    "SleepModeBackend.create_allocator",
    "SleepModeBackendFactory.install_allocator",
    "_distributed",
    "_ipc",
    "agent.deregister_memory",
    "alloc_block",
    "batch_unregister_memory",
    "bfc_allocator.cc",
    "bg",
    "cudaMalloc_count",
    "dump_log_on_failure",
    "enable_cumem_allocator",
    "error_code",
    "freed_before",
    "is_sleeping",
    "load_state_dict",
    "my_malloc",
    "newm",
    "ray.experimental.deregister_nixl_memory",
    "release_available_cached_blocks",
    "release_cached_blocks",
    "round_size",
    "static_forward_context",
    "sys.meta_path",
    "templateThread",
    "try_allocate_expandable_block",
    "unregister_memory",
    "weights_already_processed",
}

WORD = re.compile(r"\w+|[.,;:!?()]")  # a phrase has no mark inside, but may go on in the next line
SPACES = "  "  # neighbours of a phrase share none
NAME = re.compile(r"[A-Za-z_]\w*")
FENCED = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?")
TEST = re.compile(r"(?:Test|Fuzz)[A-Z]\w+")
SOURCE = re.compile(r"[\w./-]+\.(?:go|c|h|S|py|sh|cu|md|ld|map)")
FOLDER = re.compile(rf"(?:{'|'.join(FOLDERS)})/[\w./-]+")
PLAIN = re.compile(r"(?<![\w./*-])[\w./-]*[a-z0-9_]\.(?:go|c)\b(?![\w(.])")  # in comments, unquoted
# Strings come before comments: a comment's mark inside a string is none.
COMMENT = {
    "python": re.compile(
        r'^[ \t]*("""[^\0]*?""")|"""[^\0]*?"""|"(?:\\.|[^"\\\n])*"'
        r"|'(?:\\.|[^'\\\n])*'|(#.*)",
        re.MULTILINE,
    ),
    "shell": re.compile(r"(?:^|\s)(# .*)", re.MULTILINE),
    "go or c": re.compile(
        r'"(?:\\.|[^"\\\n])*"' r"|'(?:\\.|[^'\\\n])*'|`[^`]*`|(//[^\n]*|/\*.*?\*/)", re.DOTALL
    ),
}


class Entry(NamedTuple):
    """A row of CONTRIBUTING.md's list of words."""

    words: list[str]
    most: int  # occurrences, in comments and documents
    wanted: float  # in 10,000 words


@dataclass(frozen=True)
class File:
    path: str  # from the root
    text: str

    @property
    def is_document(self) -> bool:
        return self.path.endswith(".md")

    @property
    def is_go(self) -> bool:
        return self.path.endswith(".go")

    @property
    def is_test(self) -> bool:
        *folders, name = self.path.split("/")
        return (
            name.endswith("_test.go")
            or name.startswith(("test_", "conftest"))
            or not {"testdata", "tests", "test"}.isdisjoint(folders)
        )

    @property
    def is_product(self) -> bool:
        return self.is_code and not self.is_test

    @property
    def is_code(self) -> bool:
        return self.path.split("/")[0] in PRODUCT and not self.is_document

    @property
    def folder(self) -> str:
        return self.path.rpartition("/")[0]

    @property
    def lines(self) -> int:
        return sum(1 for line in self.text.splitlines() if line.strip())

    @cached_property
    def prose_and_code(self) -> tuple[str, str]:
        """A document is all prose. The prose of a program is its comments."""
        if self.is_document:
            return self.text, ""
        kind = {".py": "python", ".sh": "shell"}.get(Path(self.path).suffix, "go or c")
        comments: list[str] = []

        def take(match: re.Match[str]) -> str:
            if match.lastindex is None:
                return match[0]
            comments.append(match[match.lastindex])
            return " "

        code = COMMENT[kind].sub(take, self.text)
        return "\n".join(comments), code

    @property
    def prose(self) -> str:
        return self.prose_and_code[0]


class Tree:
    """The files of a checkout, built or not."""

    def __init__(self, root: Path = ROOT) -> None:
        self.paths = sorted(path.relative_to(root).as_posix() for path in source_files(root))
        self.files = [
            File(path, (root / path).read_text(errors="replace"))
            for path in self.paths
            if path.endswith(READ)
        ]
        self.product = [file for file in self.files if file.is_product]
        self.go = [file for file in self.product if file.is_go]
        self.contributing = (root / "CONTRIBUTING.md").read_text()

    def rooms(self) -> list[str]:
        """The packages of Go that CONTRIBUTING.md's map must name."""
        return sorted({file.folder for file in self.go if file.path.startswith(MAPPED)})

    def mapped(self) -> set[str]:
        """The folders in the map's first column: "vmm/space, small" are vmm/space and vmm/small."""
        found = set()
        for places in re.findall(r"^\| ([\w/, ]+?) \|", self.contributing, re.MULTILINE):
            parent = ""
            for place in places.split(", "):
                path = (place if "/" in place else f"{parent}/{place}").strip("/")
                parent = path.rpartition("/")[0]
                found.add(path)
        return found

    def unmapped(self) -> list[str]:
        mapped = self.mapped()
        return [room for room in self.rooms() if room not in mapped]

    def circles(self) -> list[str]:
        """Which files of C in preload use which, where that leads back to the first."""
        files = [
            file
            for file in self.product
            if file.path.startswith("preload/") and file.path.endswith(".c")
        ]
        reach = [file for file in files if file.folder == REACH]
        return [
            *circles(file for file in files if file.folder != REACH),
            *circles(reach),
        ]

    def entries(self) -> list[Entry]:
        """CONTRIBUTING.md's list of words."""
        return [
            Entry(words.split(", "), int(most), float(wanted))
            for words, most, wanted in LISTED.findall(self.contributing)
        ]

    @cached_property
    def words(self) -> str:
        """All words but those of the list itself, with two spaces between."""
        texts = (file.prose for file in self.files if not file.path.startswith(OLD_WORDS))
        return SPACES.join(["", *WORD.findall(LISTED.sub("", "\n".join(texts)).lower()), ""])

    def uses(self) -> list[tuple[Entry, int]]:
        return [
            (entry, sum(self.words.count(f" {SPACES.join(word.split())} ") for word in entry.words))
            for entry in self.entries()
        ]

    def overused(self) -> list[str]:
        return [
            f"{', '.join(entry.words)}: {count}, and the list allows {entry.most}"
            for entry, count in self.uses()
            if count > entry.most
        ]

    def dead_names(self) -> list[str]:
        """Names in documents and comments of tests, files and identifiers that do not exist."""
        identifiers = set[str]()
        for file in self.files:
            identifiers.update(NAME.findall(file.prose_and_code[1]))
        places = set(ends(self.paths))

        def exists(name: str) -> bool:
            command = name.split()[0] if name.strip() else name
            if SOURCE.fullmatch(command) or FOLDER.fullmatch(command):
                return command.strip("./") in places
            dotted = DOTTED.fullmatch(name)
            if dotted is None or dotted[1] in ELSEWHERE:
                return True  # a flag, an expression, a value
            parts = NAME.findall(dotted[1])
            return all(
                part in identifiers or part.removeprefix(METRIC) in identifiers for part in parts
            )

        return [
            f"{file.path}: {name}"
            for file in self.files
            if not file.path.startswith(OLD_NAMES)
            for name in dict.fromkeys(named(file))
            if not exists(name)
        ]


def circles(files: Iterable[File]) -> Iterator[str]:
    """Each use of a file by another, by a name, that is part of a circle."""
    codes: dict[str, list[str]] = {}
    for file in files:
        place = TOGETHER if file.folder == TOGETHER else file.path
        codes.setdefault(place, []).append(STRING.sub("", file.prose_and_code[1]))
    definers = {
        name: place
        for place, parts in codes.items()
        for part in parts
        for name in GLOBAL.findall(part)
    }
    uses: dict[str, dict[str, str]] = {}
    for place, parts in codes.items():
        names = {
            name for part in parts for name in set(USED.findall(part)) - set(OWN.findall(part))
        }
        uses[place] = {
            definers[name]: name
            for name in sorted(names & definers.keys(), reverse=True)
            if definers[name] != place
        }

    def leads_back(start: str, used: str) -> bool:
        seen, rest = {used}, [used]
        while rest:
            fresh = uses[rest.pop()].keys() - seen
            seen |= fresh
            rest += fresh
        return start in seen

    for place, used in uses.items():
        for other, name in used.items():
            if leads_back(place, other):
                yield f"{place} uses {other}: {name}"


def source_files(folder: Path) -> Iterator[Path]:
    """The files below the root, or a folder of it, that belong to the project."""
    for path in folder.iterdir():
        if path.name.startswith(".") or path.name in GENERATED or path.suffix == ".egg-info":
            continue
        if path.is_dir():
            yield from source_files(path)
        else:
            yield path


def ends(paths: Iterable[str]) -> Iterator[str]:
    """The ends of each path and of the folders above it: a document may leave out the start."""
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            for start in range(end):
                yield "/".join(parts[start:end])


def named(file: File) -> Iterator[str]:
    """What the file's prose names: in a document with back-quotes, in a comment also without."""
    prose = FENCED.sub("", file.prose) if file.is_document else file.prose
    yield from QUOTED.findall(prose)
    if not file.is_document:
        yield from (name for name in PLAIN.findall(prose) if "NAME" not in name)
        yield from TEST.findall(prose)


def building(file: File) -> str:
    """Which of the buildings a file belongs to; the simulator and the pools are counted apart."""
    if file.path.startswith("internal/cudasim/"):
        return "simulator"
    return "allocators" if file.path.startswith("vmm/pool/") else "house"


def package_variables(file: File) -> int:
    """How many variables a file of Go declares outside of functions, without errors and asserts."""
    text = re.sub(r"/\*.*?\*/", "", file.text, flags=re.DOTALL)
    blocks = re.findall(r"^var \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    names = re.findall(r"^var (\w+)", text, re.MULTILINE)
    for block in blocks:
        names += re.findall(r"^\t(\w+)", block, re.MULTILINE)
    return sum(name != "_" and not re.match("err[A-Z]", name) for name in names)


def figures(tree: Tree) -> Iterator[str]:
    lines = Counter[str]()
    for file in tree.product:
        lines[building(file)] += file.lines
    tests = sum(file.lines for file in tree.files if file.is_code and file.is_test)
    yield (
        f"product lines without blanks: the house {lines['house']} [38000], the simulator"
        f" {lines['simulator']} [6000], the allocators {lines['allocators']} [4900]; tests {tests}"
    )

    engine = [file for file in tree.go if file.folder == "vmm"]
    methods = [
        name
        for file in engine
        for name in re.findall(r"^func \(\w+ \*Engine\) ([A-Z]\w*)", file.text, re.MULTILINE)
    ]
    setters = sum(len(re.findall(r"[Cc]all it before", file.text)) for file in engine)
    yield f"vmm.Engine: {len(methods)} exported methods [35], {setters} to be called first [0]"
    variables = sum(package_variables(file) for file in tree.go if file.folder == "preload")
    yield f"package variables of preload: {variables} [1]"

    functions = [
        name
        for file in tree.go
        for name in re.findall(r"^func (?:\([^)]*\) )?(\w+)", file.text, re.MULTILINE)
    ]
    letters = sum(map(len, functions)) / max(1, len(functions))
    yield f"functions of Go: {len(functions)}, with {letters:.1f} letters in a name [10]"

    telegrams = sum(len(TELEGRAM.findall(file.prose)) for file in tree.product)
    yield f"telegrams, which have a semicolon and a colon in a comment: {telegrams} [20]"
    kept = sum(len(re.findall(r"\bkept\w*", file.text)) for file in tree.go)
    engine_and_preload = [
        file for file in tree.product if file.path.startswith(("preload/", "vmm/"))
    ]
    shut = sum(len(re.findall(r"\bshut\w*", file.text, re.I)) for file in engine_and_preload)
    yield f"words with several senses, code included: shut {shut} [0], kept {kept}"
    yield f"packages that are on no map: {len(tree.unmapped())} [0]"
    yield f"uses of files of preload that are part of a circle: {len(tree.circles())} [0]"

    total = max(1, sum(word[0].isalpha() for word in tree.words.split()))
    yield "words in comments and documents, and how many in 10,000 words:"
    for entry, count in tree.uses():
        yield (
            f"    {', '.join(entry.words):22} {count:4}, at most {entry.most:4};"
            f" {1e4 * count / total:.1f} [{entry.wanted:.1f}]"
        )


def lower(tree: Tree) -> None:
    """Writes the list with numbers that leave no room for more of its words."""
    text = tree.contributing
    for entry, count in tree.uses():
        words = ", ".join(entry.words)
        text = text.replace(
            f"| {words} | {entry.most} |", f"| {words} | {min(entry.most, count)} |"
        )
    (ROOT / "CONTRIBUTING.md").write_text(text)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--lower"]):
        print("usage: scripts/house.py [--lower]", file=sys.stderr)
        return 2
    tree = Tree()
    if arguments:
        lower(tree)
        tree = Tree()
    for line in figures(tree):
        print(line)
    failures = {
        "on no map of CONTRIBUTING.md": tree.unmapped(),
        "words that are used too often": tree.overused(),
        "names of nothing": tree.dead_names(),
        "files in a circle": tree.circles(),
    }
    for what, found in failures.items():
        for line in found:
            print(f"{what}: {line}", file=sys.stderr)
    return 1 if any(failures.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
