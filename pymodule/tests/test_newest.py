"""scripts/newest/compare.py over made-up wheels: what it says of what a plugin relies on."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT
from simulator import HANGS

NEWEST = ROOT / "scripts" / "newest"
PLUGIN = """
import importlib
from vllm.loaders import Base, load
import torch

_RUNNER = "sglang.runner.Runner"

class Loader(Base):
    def load_model(self, config, prefix=""):
        return load(config, device="cuda")

    def _check(self): ...

def hooks():
    return {f"{_RUNNER}.run": _run}

def _run(original, runner, *, tokens): ...

def works():
    worker = importlib.import_module("vllm.worker")
    worker.Worker.instance = None
    torch.cuda.memory.release()
    return "VLLM_CHOICE"
"""
TABLE = """
name vllm.older
  or name vllm.loaders.load
text vllm/worker.py class Worker
binds torch/lib/libc10_cuda.so cudaMalloc
functions torch/lib/*.so
like vllm.worker.Worker pymodule/tms/_plugin.py Loader start
"""
GOOD = {
    "vllm/__init__.py": "",
    "vllm/loaders.py": "from .deep import *\ndef load(config, *, device): ...",
    "vllm/deep.py": "if True:\n    class Base:\n        def load_model(self, config, prefix): ...",
    "vllm/worker.py": "class Worker:\n    instance = None  # VLLM_CHOICE\n    def start(self): ...",
    "vllm-1.0.dist-info/METADATA": "",
    "torch/__init__.py": "",
    "torch/cuda/__init__.py": "from . import memory",
    "torch/cuda/memory.py": "from torch._C import release",
    "torch/_C/__init__.pyi": "def release(pool: int = 0) -> None: ...",
    "torch-3.0.dist-info/METADATA": "",
    "sglang/__init__.py": "",
    "sglang/runner.py": "class Runner:\n    def run(self, *, tokens): ...",
    "sglang-2.0.dist-info/METADATA": "",
}


class Wheels:
    """Wheels, unpacked, beside a plugin that uses them."""

    def __init__(self, folder: Path) -> None:
        self.site, self._root = folder / "site", folder / "root"
        for name, text in GOOD.items():
            self.write(name, text)
        self.library("cudaMalloc")
        plugin = self._root / "pymodule" / "tms" / "_plugin.py"
        plugin.parent.mkdir(parents=True)
        plugin.write_text(PLUGIN)
        functions = self._root / "forward" / "calls" / "functions.txt"
        functions.parent.mkdir(parents=True)
        functions.write_text("cudaMalloc\n")
        self.table(TABLE)

    def write(self, name: str, text: str) -> None:
        file = self.site / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def library(self, function: str) -> None:
        """PyTorch's library calls this function of CUDA's."""
        file = self.site / "torch" / "lib" / "libc10_cuda.so"
        file.parent.mkdir(exist_ok=True)
        source = f"int {function}(void); int use(void) {{ return {function}(); }}"
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", file, "-"]
        subprocess.run(command, input=source, text=True, check=True)

    def table(self, text: str) -> None:
        (self._root / "table.txt").write_text(text)

    def compare(self, table: Path | None = None) -> tuple[int, str]:
        """The exit status, and the lines about what is not as relied on."""
        compare = NEWEST / "compare.py"
        table = table or self._root / "table.txt"
        done = subprocess.run(
            [sys.executable, compare, self.site, "--root", self._root, "--table", table],
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )
        assert not done.stderr
        lines = [line for line in done.stdout.splitlines() if "as we rely on" not in line]
        return done.returncode, "\n".join(lines)


@pytest.fixture
def wheels(tmp_path: Path) -> Wheels:
    return Wheels(tmp_path)


def test_wheels_that_have_everything(wheels: Wheels) -> None:
    assert wheels.compare() == (0, "")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("vllm/deep.py", "", "vllm: vllm.loaders.Base (tms/_plugin.py:3): gone"),
        ("vllm/loaders.py", "from .deep import *", "vllm.loaders.load (tms/_plugin.py:3): gone"),
        (
            "vllm/loaders.py",
            "from .deep import *\ndef load(config, *, place): ...",
            "a call of vllm.loaders.load (tms/_plugin.py:10): changed: missing a required",
        ),
        (
            "vllm/deep.py",
            "class Base:\n    def load_model(self, config, prefix, rank): ...",
            "Base.load_model (tms/_plugin.py:9): changed: it has 'rank', which ours lacks",
        ),
        (
            "vllm/deep.py",
            f"{GOOD['vllm/deep.py']}\n        def _check(self): ...",
            "Base._check (tms/_plugin.py:12): changed: it has a '_check' itself now",
        ),
        ("vllm/worker.py", "class Worker: ...", "Worker.instance (tms/_plugin.py:21): gone"),
        (
            "vllm/worker.py",
            "class Worker:\n    instance = 1  # VLLM_CHOICES, NO_VLLM_CHOICE",
            "VLLM_CHOICE (_plugin.py:23): gone",
        ),
        (
            "vllm/worker.py",
            "from .loaders import load as Worker  # VLLM_CHOICE",
            "text vllm/worker.py class Worker (table.txt): changed: vllm/worker.py does not say it",
        ),
        (
            "vllm/worker.py",
            f"{GOOD['vllm/worker.py']}\n    def stop(self): ...",
            "(table.txt): changed: it has 'stop', which Loader lacks",
        ),
        ("torch/_C/__init__.pyi", "", "torch.cuda.memory.release (tms/_plugin.py:22): gone"),
        (
            "torch/_C/__init__.pyi",
            "def release(pool: int) -> None: ...",
            "a call of torch.cuda.memory.release (tms/_plugin.py:22): changed: missing a required",
        ),
        (
            "sglang/runner.py",
            "class Runner:\n    def run(self, *, tokens, more=1): ...",
            "Runner.run (tms/_plugin.py:15): changed: it has 'more', which ours lacks",
        ),
    ],
)
def test_what_has_changed(wheels: Wheels, name: str, text: str, said: str) -> None:
    wheels.write(name, text)
    status, lines = wheels.compare()
    assert status == 1 and said in lines, lines


def test_a_library_that_binds_another_function(wheels: Wheels) -> None:
    wheels.library("cudaMallocNew")
    status, lines = wheels.compare()
    assert status == 1
    assert "(table.txt): gone: libc10_cuda.so has no cudaMalloc\n" in lines
    assert "changed: cudaMallocNew not in forward/calls/functions.txt" in lines


def test_what_may_be_missing(wheels: Wheels) -> None:
    wheels.write("torch/_C/__init__.pyi", "")
    wheels.table(f"{TABLE}optional torch.cuda.memory.release it is only faster")
    assert wheels.compare() == (0, "")


@pytest.mark.parametrize("kind", ["functions", "looks-up"])
def test_libraries_that_are_not_there(wheels: Wheels, kind: str) -> None:
    wheels.table(f"{TABLE}{kind} torch/lib/other*.so")
    status, lines = wheels.compare()
    assert status == 1 and "(table.txt): gone: there is no torch/lib/other*.so" in lines


def test_the_cache_of_sglang(wheels: Wheels) -> None:
    """In UnifiedRadixCache's place, older versions have a ChunkCache; a RadixCache says nothing."""
    folder = "sglang/srt/mem_cache"
    unified = "sglang.srt.mem_cache.unified_radix_cache.UnifiedRadixCache"
    wheels.write(f"{folder}/radix_cache.py", "class RadixCache: ...")
    wheels.write(f"{folder}/unified_radix_cache.py", "class UnifiedRadixCache: ...")
    _, lines = wheels.compare(NEWEST / "table.txt")
    for name in ("cache_controller", "linker"):
        assert f"sglang: name {unified}.{name} (table.txt): gone" in lines
    wheels.write(f"{folder}/chunk_cache.py", "class ChunkCache: ...")
    _, lines = wheels.compare(NEWEST / "table.txt")
    assert unified not in lines


def test_wheels_from_an_index(tmp_path: Path) -> None:
    """What an earlier or interrupted run has left is not compared: without an index, nothing is."""
    index, place = tmp_path / "index" / "triton", tmp_path / "build" / "newest"
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    index.mkdir(parents=True)
    name = "triton-1.0-py3-none-any.whl"
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    with zipfile.ZipFile(index / name, "w") as wheel:
        wheel.writestr("triton/backends/nvidia/driver.c", "cuLaunchKernelEx")
        wheel.writestr("triton-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        wheel.writestr(
            "triton-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: triton\nVersion: 1.0\n"
        )
    for folder in ("wheels", "site"):
        (place / folder / "new").mkdir(parents=True)
        (place / folder / "new" / "triton-0.9-py3-none-any.whl").write_text("half")

    def newest() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [tmp_path / "scripts" / "newest.sh", "triton"],
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("PIP_")},
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PIP_CONFIG_FILE": os.devnull,
                "PIP_INDEX_URL": (tmp_path / "index").as_uri(),
            },
            capture_output=True,
            text=True,
            timeout=HANGS,
            check=False,
        )

    done = newest()
    assert done.returncode == 0, done.stderr
    assert "== triton 1.0: 1 as we rely on, 0 changed or gone" in done.stdout
    (index / "index.html").unlink()
    (index / name).unlink()
    done = newest()
    assert done.returncode == 2 and "nothing was compared" in done.stderr
    assert not done.stdout
