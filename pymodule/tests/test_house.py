"""The tree keeps the rules of CONTRIBUTING.md that scripts/house.py can check."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from simulator import PYMODULE

HOUSE = runpy.run_path(str(PYMODULE.parent / "scripts" / "house.py"))
TREE = HOUSE["Tree"]()


def test_every_package_is_on_the_map() -> None:
    assert len(TREE.rooms()) > 30
    assert not TREE.unmapped()


def test_words() -> None:
    """Each word of the list occurs at most as often as the list says."""
    assert len(TREE.entries()) > 5
    assert not TREE.overused()


def test_named_things_exist() -> None:
    """The tests, files and identifiers that documents and comments name."""
    assert not TREE.dead_names()


def test_no_circle_of_files() -> None:
    assert not TREE.circles()


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        ("HIDDEN int one(void)\n{\n\treturn two;\n}\n", "HIDDEN int two;", []),
        (
            "HIDDEN int one(void)\n{\n\treturn two;\n}\n",
            "HIDDEN int two = 2;\nEXPORT void use(void)\n{\n\tone();\n}\n",
            [
                "preload/first.c uses preload/second.c: two",
                "preload/second.c uses preload/first.c: one",
            ],
        ),
        ("HIDDEN int one;\nint two_of;", 'HIDDEN int two; /* one */ char *text = "one";', []),
        ("HIDDEN int one;\nint a = two;", "HIDDEN int two;\nstatic int one;\nint b = one;", []),
    ],
)
def test_what_a_circle_is(first: str, second: str, found: list[str]) -> None:
    files = [HOUSE["File"]("preload/first.c", first), HOUSE["File"]("preload/second.c", second)]
    assert list(HOUSE["circles"](files)) == found


CONTRIBUTING = """
| room | what it does |
| --- | --- |
| vmm/space, small | find addresses |

| word | at most | wanted in 10,000 words | instead |
| --- | --- | --- | --- |
| so many | 1 | 0.3 | as many |
"""


@pytest.mark.parametrize(
    ("path", "text", "unmapped", "overused", "dead"),
    [
        ("vmm/small/a.go", "package small // so many", [], 0, []),
        ("vmm/large/a.go", "package large", ["vmm/large"], 0, []),
        ("vmm/a.go", "package vmm // so\n// many, so many", ["vmm"], 1, []),
        ("docs/a.md", "so many, and so\nmany", [], 1, []),
        ("pymodule/a.py", '"""So many."""\n\n# so many\n', [], 1, []),
        ("pymodule/a.py", 'text = "so many"  # so many\n', [], 0, []),
        ("scripts/a.sh", "# so many\necho 'so many'\n", [], 0, []),
        ("CHANGELOG.md", "so many, so many, `Gone`, `gone.go`", [], 0, []),
        ("docs/a.md", "`held`, `gone.go`, `Lost()`, `--flag`", [], 0, ["gone.go", "Lost()"]),
        ("docs/a.md", "`TestHeld`, `TestGone`, `held.value`", [], 0, ["TestGone", "held.value"]),
        (
            "docs/a.md",
            "```\n`Lost`\n```\n`scripts/gone.sh --flag`",
            [],
            0,
            ["scripts/gone.sh --flag"],
        ),
        ("vmm/space/a.go", "package space // see held_test.go, gone.go", [], 0, ["gone.go"]),
        ("cmd/a_test.go", "package a // as TestGone does", [], 0, ["TestGone"]),
        ("cmd/a.go", "package a // calls `held` and `Lost`", [], 0, ["Lost"]),
        ("vmm/space/a.c", "/* `Lost` */ // `held`", [], 0, ["Lost"]),
    ],
)
def test_what_fails(
    path: str, text: str, unmapped: list[str], overused: int, dead: list[str], tmp_path: Path
) -> None:
    files = {
        "CONTRIBUTING.md": CONTRIBUTING,
        "cmd/held_test.go": "package held\n\nfunc TestHeld(t *testing.T) { held() }\n",
        path: text,
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    tree = HOUSE["Tree"](tmp_path)
    assert tree.unmapped() == unmapped
    assert len(tree.overused()) == overused
    assert tree.dead_names() == [f"{path}: {name}" for name in dead]
