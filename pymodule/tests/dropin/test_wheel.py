"""The wheel, installed into an otherwise empty environment, over the simulator."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import NOT_TESTS, copied, path_of
from installed import checked, installed, python_of
from programs import HERE
from simulator import BUILD, PYMODULE

ALIASES = [
    f"torch_memory_saver_hook_mode_{mode}{suffix}.abi3.so"
    for mode in ("preload", "torch")
    for suffix in ("", "_cu12", "_cu13")
]


LIBRARIES = ("libtms.so", "libtms_reach.so")
SIMULATOR = ("libcuda.so.1", "libcudart.so.12", "libcudart.so.13")


@pytest.fixture(scope="module")
def wheel() -> Path:
    pattern = "libtms-*-py3-none-manylinux_2_*_x86_64.whl"
    for old in (BUILD / "wheel").glob(pattern):
        old.unlink()
    checked(PYMODULE.parent / "scripts" / "wheel.sh")
    (built,) = (BUILD / "wheel").glob(pattern)
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def python(site: Path) -> Path:
    return python_of(site)


def test_contents(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    names = set(files.namelist())
    assert {name for name in names if "/" not in name} == set(ALIASES)
    assert {f"tms/lib/{name}" for name in LIBRARIES} < names
    assert {"tms/py.typed", "torch_memory_saver/py.typed"} <= names
    assert files.read("tms/lib/tms.h") == (PYMODULE.parent / "preload" / "tms.h").read_bytes()
    assert {f"tms/sim/{name}" for name in SIMULATOR} < names
    libraries = [name for name in names if name.endswith(".so")]
    assert len(libraries) == len(ALIASES) + len(LIBRARIES)
    assert sum(files.getinfo(name).file_size for name in ALIASES) < 64 << 10
    metadata = files.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for field in ("Name: libtms", "License-Expression: MIT", "Requires-Python: >=3.9"):
        assert f"\n{field}\n" in metadata
    assert (
        "Root-Is-Purelib: false"
        in files.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    )


def test_platform_is_honest(wheel: Path, site: Path) -> None:
    """The tag's glibc is the newest that any of the libraries requires."""
    versions = {
        int(minor)
        for library in [
            *(site / "tms" / "lib" / name for name in LIBRARIES),
            *(site / name for name in ALIASES),
            *(site / "tms" / "sim" / name for name in SIMULATOR),
        ]
        for minor in re.findall(r"GLIBC_2\.(\d+)", checked("readelf", "-VW", library))
    }
    assert f"manylinux_2_{max(versions)}_x86_64" in wheel.name


def test_command(python: Path, site: Path) -> None:
    path = str(site / "tms" / "lib" / "libtms.so")
    assert checked(python, "-m", "tms", "--path") == f"{path}\n"
    assert f"to use it  LD_PRELOAD={path} python your_script.py" in checked(python, "-m", "tms")
    tms = python.parent / "tms"
    assert checked(tms, "--path") == f"{path}\n"
    assert f"libtms.so  {path}\n" in checked(tms, "doctor", "/bin/true")
    preloaded = ":".join(str(site / "tms" / "lib" / name) for name in LIBRARIES)
    assert checked(tms, "run", "printenv", "LD_PRELOAD") == f"{preloaded}\n"


def test_plugins_of_engines(python: Path) -> None:
    """They find the entry points, and calling these without engines does no harm."""
    said = checked(
        python,
        "-c",
        """if True:
        from importlib.metadata import entry_points
        for group in ("vllm.general_plugins", "sglang.srt.plugins"):
            (plugin,) = entry_points(group=group)
            plugin.load()()
            print(plugin.name, plugin.value)
        """,
    )
    assert said == "tms tms._vllm:register\ntms tms._sglang:register\n"


def test_demo(python: Path) -> None:
    """Without a GPU, a compiler and the repository."""
    out = checked(python.parent / "tms", "demo", PATH=str(python.parent), LD_LIBRARY_PATH="")
    result = json.loads(out.splitlines()[-1])
    assert result["simulated"] is result["restored"] is result["freed"] is True
    assert result["losses_equal"] is result["lent"] is result["address_kept"] is True


BUILD_WHEEL = "import hatchling.build; hatchling.build.build_wheel({!r})"


def refusal(pymodule: Path, **variables: str) -> str:
    """What the build of a wheel says that makes none."""
    folder = pymodule.parent
    done = subprocess.run(
        [sys.executable, "-c", BUILD_WHEEL.format(str(folder))],
        cwd=pymodule,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and not list(folder.glob("*.whl"))
    return done.stderr


def test_without_the_repository_there_is_no_wheel(tmp_path: Path) -> None:
    """As from a source distribution."""
    said = refusal(shutil.copytree(PYMODULE, tmp_path / "pymodule", ignore=NOT_TESTS))
    assert said.startswith("libtms cannot be built from here")


def test_without_a_compiler_there_is_no_wheel(tmp_path: Path) -> None:
    pymodule = copied(tmp_path / "clone") / "pymodule"
    said = refusal(pymodule, PATH=path_of(tmp_path / "bin", "go", "basename"))
    assert "missing: a C compiler, gcc." in said
    assert said.endswith("so nothing is installed. Above it says why.\n")


@pytest.mark.parametrize("client", ["sglang", "slime", "areal", "megatron"])
def test_clients(client: str, python: Path) -> None:
    """Clients look for the library beside the package, by its names."""
    paths = ":".join(map(str, (HERE.parent, HERE / "fake", HERE / "clients")))
    out = checked(python, HERE / "clients" / f"{client}.py", PYTHONPATH=paths)
    assert out.endswith(" done\n")


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("linked") / "linked"
    checked("cc", "-o", program, HERE / "linked.c", f"-L{BUILD / 'sim'}", "-lcudart")
    return program


@pytest.mark.parametrize("name", ALIASES)
def test_every_name_interposes(name: str, site: Path, linked: Path) -> None:
    """Also in a program linked with libcudart, which comes before a preload's own dependencies."""
    for others in ("", ":libm.so.6", f":{site / 'tms' / 'lib' / 'libtms.so'}"):
        assert checked(linked, LD_PRELOAD=f"{site / name}{others}") == "pausable\n"


def test_all_names_are_one_library(python: Path, site: Path) -> None:
    code = f"""
import ctypes
from torch_memory_saver.utils import get_binary_path_from_package as path
libraries = [ctypes.CDLL({str(site)!r} + "/" + name) for name in {ALIASES!r}]
libraries.append(ctypes.CDLL(str(path("torch_memory_saver_hook_mode_torch_cu13"))))
libraries[0].tms_set_current_tag(b"one")
get = libraries[-1].tms_get_current_tag
get.restype = ctypes.c_char_p
print(len({{ctypes.cast(l.tms_pause, ctypes.c_void_p).value for l in libraries}}), get())
"""
    assert checked(python, "-c", code) == "1 b'one'\n"


def test_typed(python: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import tms\nfrom torch_memory_saver import torch_memory_saver\n"
        "tms.pause(1)\ntorch_memory_saver.pause(1)\ntms.pause('right')\n"
        "tms.region('t', backup='hots')\ntms.region('t', backup='peer:1')\n"
        "tms.resume(progress=3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", python, "--cache-dir", tmp_path]
        + ["--config-file", "", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"program\.py:(\d+): error: .*\[arg-type\]", done.stdout) == [
        "3",
        "4",
        "6",
        "8",
    ]
