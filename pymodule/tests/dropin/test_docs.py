"""Programs and examples in the documents run, and links lead somewhere."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from programs import output
from simulator import BUILD, HANGS, PYMODULE, environment

ROOT = PYMODULE.parent
EXAMPLES = ROOT / "docs" / "examples"
DOCUMENTS = [ROOT / "README.md", PYMODULE / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def test_readme_example() -> None:
    """It runs on a device with room for it, and its claims are checked in between."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = example.splitlines()
    pause = lines.index(next(line for line in lines if line.startswith("tms.pause()")))
    lines[pause] = """
import cuda
addresses = model.weight.data_ptr(), cache.data_ptr()
for address in addresses:
    cuda.write(address, bytes([7]) * 4096)
before = torch.cuda.mem_get_info()[0]
assert tms.pause() == 1280 << 20
assert torch.cuda.mem_get_info()[0] == before + (1280 << 20)
"""
    lines.append("""
assert addresses == (model.weight.data_ptr(), cache.data_ptr())
assert [cuda.read(address, 4096) == bytes([7]) * 4096 for address in addresses] == [True, False]
print("as the README says")
""")
    assert output("\n".join(lines), CUDASIM_MEMORY="4G") == "as the README says\n"


def test_python_readme_example() -> None:
    """The parts that are the reader's own are made up."""
    readme = (PYMODULE / "README.md").read_text()
    (example,) = re.findall(r"```python\n(import torch\n.*?)```", readme, re.DOTALL)
    prelude = """
import torch

class Model:
    def cuda(self):
        self.weight = torch.full((4 << 20,), 7, dtype="torch.uint8", device="cuda")
        return self

def evaluate(model):
    print(model.weight[:1].item(), torch.cuda.mem_get_info()[0] >> 30)

class subprocess:
    def run(command):
        import os
        print(os.environ["LD_PRELOAD"].endswith("libtms.so"))
"""
    assert output(prelude + example, CUDASIM_MEMORY="80G") == "7 79\nTrue\n"


def test_rollout() -> None:
    """Two processes on a device that has no room for both, as without-gpu.md starts them."""
    done = subprocess.run(
        [BUILD / "bin" / "tms", "run", "--simulate", "--memory", "64M", "--devices", "1", "--"]
        + [sys.executable, EXAMPLES / "rollout.py"],
        env={**environment(), "LD_PRELOAD": "", "CUDASIM_SHARED": f"rollout-{os.getpid()}"},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *(f"step {step}: the server says {step} tokens" for step in (1, 2, 3)),
        "weights 3, moments 6 after 3 steps",
    ]


@pytest.mark.thorough
def test_picture(tmp_path: Path) -> None:
    """It is drawn from a run, as the one in the README was."""
    picture = tmp_path / "memory.svg"
    command = [sys.executable, ROOT / "scripts" / "picture.py", picture]
    subprocess.run(command, check=True, timeout=HANGS)
    for drawn in (picture, ROOT / "docs" / "memory.svg"):
        paths = {
            path[0].text: path.get("d") or ""
            for path in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}path")
            if len(path)
        }
        assert set(paths) == {"weights", "optimizer", "gradients", "rollout weights", "kv cache"}
        for tag, path in paths.items():  # each turn is a rectangle; the trainer's last goes on
            assert path.count("M") >= (3 if tag in ("rollout weights", "kv cache") else 4), (
                tag,
                path,
            )


def test_picture_of_a_slow_run() -> None:
    """A run may take minutes on a busy machine: its time axis still has at most ten steps."""
    draw = runpy.run_path(str(ROOT / "scripts" / "picture.py"))["draw"]
    drawn = draw([(0.0, {"weights": 32 << 20}), (431.0, {})])
    times = re.findall(r">(\d+) s<", drawn)
    assert times == [str(50 * tick) for tick in range(9)]


FREED = "64 MiB are free for others\n"


@pytest.mark.parametrize(
    ("name", "library", "said"),
    [
        ("linked", "-ltms -Wl,--no-as-needed", {"": f"{FREED}the last byte is 42\n"}),
        ("looked_up", "-ldl", {str(BUILD / "lib" / "libtms.so"): FREED, "": "not pausable\n"}),
    ],
)
def test_programs_in_c(name: str, library: str, said: dict[str, str], tmp_path: Path) -> None:
    """What each says with a preload, and without."""
    folders = [BUILD / "lib", BUILD / "sim"]
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{folders[0]}"]
    libraries = [*(f"-L{folder}" for folder in folders), *library.split(), "-lcudart"]
    source = EXAMPLES / f"{name}.c"
    subprocess.run(["gcc", *flags, "-o", tmp_path / name, source, *libraries], check=True)
    for preload, words in said.items():
        variables = {"LD_LIBRARY_PATH": ":".join(map(str, folders)), "LD_PRELOAD": preload}
        done = subprocess.run(
            [tmp_path / name],
            env={**environment(), **variables},
            check=True,
            timeout=HANGS,
            capture_output=True,
            text=True,
        )
        assert done.stdout == words


def test_touching_a_paused_pointer() -> None:
    """As docs/symptoms.md says for calls from C and from PyTorch. Standard error names the tag."""
    assert (
        output(
            """
import ctypes, cuda, tms
cuda._runtime.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
with tms.region("t", backup="host"):
    pointer = cuda.malloc(2 << 20)
cuda.write(pointer, b"before")
tms.pause()
for touch in (lambda: cuda.read(pointer, 6), lambda: cuda.write(pointer, b"lost")):
    try:
        touch()
    except cuda.CudaError as error:
        print(error)
print(cuda._runtime.cudaMemset(pointer, 0, 6))
tms.resume()
print(cuda.read(pointer, 6))
""",
            quiet=False,
        )
        == "1\n1\n1\nb'before'\n"
    )


def test_error_codes() -> None:
    """The table of docs/symptoms.md names the exceptions that Python raises."""
    from tms._errors import _STICKY, from_code

    rows = re.findall(
        r"^\| ([0-9, to]+) \| `(\w+)` \|", (ROOT / "docs" / "symptoms.md").read_text(), re.M
    )
    seen = set()
    for codes, name in rows:
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", codes):
            for code in range(int(first), int(last or first) + 1):
                seen.add(code)
                assert type(from_code(code, "", "")).__name__ == name, code
    assert seen > _STICKY


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links(document: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
