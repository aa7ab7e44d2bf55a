"""The wheel, installed into an otherwise empty environment, over the simulator."""

from __future__ import annotations

import hashlib
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
from installed import checked, installed, pip, python_of
from programs import HERE
from simulator import BUILD, PYMODULE

import tms

DROPIN = "tms/dropin"
ALIASES = [
    f"torch_memory_saver_hook_mode_{mode}{suffix}.abi3.so"
    for mode in ("preload", "torch")
    for suffix in ("", "_cu12", "_cu13")
]


SUMS = BUILD / "wheel" / "SHA256SUMS"
LIBRARIES = ("libtms.so", "libtms_reach.so")
SIMULATOR = ("libcuda.so.1", "libcudart.so.12", "libcudart.so.13", "libnvidia-ml.so.1")


pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def wheels() -> tuple[Path, Path]:
    """libtms's, and the one that makes torch_memory_saver its own."""
    patterns = ("libtms-*-manylinux_2_*_x86_64.whl", "libtms_torch_memory_saver-*-none-any.whl")
    for old in [old for pattern in patterns for old in (BUILD / "wheel").glob(pattern)]:
        old.unlink()
    checked(PYMODULE.parent / "scripts" / "wheel.sh")
    (libtms,), (switch,) = ((BUILD / "wheel").glob(pattern) for pattern in patterns)
    return libtms, switch


@pytest.fixture(scope="module")
def wheel(wheels: tuple[Path, Path]) -> Path:
    return wheels[0]


@pytest.fixture(scope="module")
def site(wheels: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("environment"), *wheels)


@pytest.fixture(scope="module")
def python(site: Path) -> Path:
    return python_of(site)


def test_contents(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    names = set(files.namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not re.search(r"\.(dist-info|data)$", top)} == {
        "tms"
    }  # only its own
    (program,) = [name for name in names if ".data/scripts/" in name]
    assert program.endswith(".data/scripts/tms") and files.read(program).startswith(b"\x7fELF")
    assert {f"{DROPIN}/{name}" for name in ALIASES} < names
    assert {f"tms/lib/{name}" for name in LIBRARIES} < names
    assert {"tms/py.typed", f"{DROPIN}/torch_memory_saver/py.typed"} <= names
    assert files.read("tms/lib/tms.h") == (PYMODULE.parent / "preload" / "tms.h").read_bytes()
    assert {f"tms/sim/{name}" for name in SIMULATOR} < names
    linking = ("pkgconfig/tms.pc", "pkgconfig/libtms.pc", "cmake/tms/tms-config.cmake")
    assert {f"tms/lib/{name}" for name in linking} < names
    manual = [name for name in names if "/data/share/man/man1/tms" in name]
    assert len(manual) > 20
    libraries = [name for name in names if name.endswith(".so")]
    assert len(libraries) == len(ALIASES) + len(LIBRARIES)
    assert sum(files.getinfo(f"{DROPIN}/{name}").file_size for name in ALIASES) < 64 << 10
    metadata = files.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    for field in ("Name: libtms", "License-Expression: MIT", "Requires-Python: >=3.9"):
        assert f"\n{field}\n" in metadata
    assert (
        "Root-Is-Purelib: false"
        in files.read(next(name for name in names if name.endswith("/WHEEL"))).decode()
    )
    links = re.findall(r"\]\(([^)]*)\)", metadata)  # PyPI has no file beside its page
    assert all("://" in link for link in links), links


def test_publisher(tmp_path: Path) -> None:
    """One place has the home page, the issues and the license of both distributions."""
    pymodule = shutil.copytree(PYMODULE, tmp_path / "pymodule", ignore=NOT_TESTS)
    project = pymodule / "pyproject.toml"
    (table,) = re.findall(r"^\[project\.urls\].*$", project.read_text(), re.MULTILINE)
    urls = '\nHomepage = "https://example.org"\nIssues = "https://example.org/issues"'
    text = project.read_text().replace(table, table + urls)
    project.write_text(text.replace('license = "MIT"', 'license = "BSD-3-Clause"'))
    write = "import hatchling.build as b; print(b.prepare_metadata_for_build_wheel({!r}))"
    for folder in (pymodule, pymodule / "dropin"):
        done = subprocess.run(
            [sys.executable, "-c", write.format(str(tmp_path))],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        metadata = (tmp_path / done.stdout.strip() / "METADATA").read_text()
        for field in (
            "License-Expression: BSD-3-Clause",
            "Project-URL: Homepage, https://example.org",
            "Project-URL: Issues, https://example.org/issues",
        ):
            assert f"\n{field}\n" in metadata


def test_hashes(wheels: tuple[Path, Path]) -> None:
    sums = dict(reversed(line.split()) for line in SUMS.read_text().splitlines())
    for wheel in wheels:
        assert sums[wheel.name] == hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_materials(wheel: Path) -> None:
    """The list names what the linker put in: what Go says of the binaries."""
    files = zipfile.ZipFile(wheel)
    name = next(
        name for name in files.namelist() if name.endswith(".dist-info/sboms/libtms.cdx.json")
    )
    parts = json.loads(files.read(name))["components"]
    found = {part["purl"] for part in parts}
    go = shutil.which("go") or "/usr/local/go/bin/go"
    binaries = (BUILD / "lib" / "libtms.so", BUILD / "bin" / "tms")
    said = checked(go, "version", "-m", *binaries)
    modules = re.findall(r"^\tdep\t(\S+)\t(\S+)", said, re.MULTILINE)
    compilers = re.findall(r": go(\S+)$", said, re.MULTILINE)
    script = (PYMODULE.parent / "internal/report/uplot/uPlot.iife.min.js").read_text()
    assert found == {
        *(f"pkg:golang/{module}@{version}" for module, version in modules),
        *(f"pkg:golang/stdlib@{version}" for version in compilers),
        f"pkg:npm/uplot@{script.partition('uPlot (v')[2].partition(')')[0]}",
    }
    heads = re.findall(r"^== (.*)$", files.read("tms/LICENSES").decode(), re.MULTILINE)
    assert {part["name"] for part in parts} == {*heads} - {"go"} | {"stdlib"}


def test_platform_is_honest(wheel: Path, site: Path) -> None:
    """The libraries require no newer glibc than the tag's."""
    versions = {
        int(minor)
        for library in [
            *(site / "tms" / "lib" / name for name in LIBRARIES),
            *(site / DROPIN / name for name in ALIASES),
            *(site / "tms" / "sim" / name for name in SIMULATOR),
        ]
        for minor in re.findall(r"GLIBC_2\.(\d+)", checked("readelf", "-VW", library))
    }
    assert max(versions) <= 28 and "-manylinux_2_28_x86_64" in wheel.name


def test_command(python: Path, site: Path) -> None:
    path = str(site / "tms" / "lib" / "libtms.so")
    assert checked(python, "-m", "tms", "--path") == f"{path}\n"
    assert f"to use it  LD_PRELOAD={path} python your_script.py" in checked(python, "-m", "tms")
    tms = python.parent / "tms"
    assert checked(tms, "--path") == f"{path}\n"
    assert f"libtms.so  {path}\n" in checked(tms, "doctor", "/bin/true")
    preloaded = ":".join(str(site / "tms" / "lib" / name) for name in LIBRARIES)
    assert checked(tms, "run", "printenv", "LD_PRELOAD") == f"{preloaded}\n"
    simulator = checked(tms, "run", "--simulate", "printenv", "LD_LIBRARY_PATH")
    assert simulator.strip().split(":")[0] == str(site / "tms" / "sim")


PAUSES = """
import ctypes, tms
ctypes.CDLL("libcudart.so.12").cudaMalloc(ctypes.byref(ctypes.c_void_p()), 1 << 20)
tms.pause(everything=True)
tms.resume()
print(tms.library_path())
"""


@pytest.mark.parametrize("kind", ["venv", "target", "user", "prefix", "editable"])
def test_each_kind_of_installation(kind: str, wheel: Path, tmp_path: Path) -> None:
    """The command, Python and the library find each other. An environment of conda is a prefix."""
    folder = tmp_path / kind
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = folder / "lib" / version / "site-packages"
    base = os.path.realpath(sys.executable)
    install = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", "--no-compile"]
    variables: dict[str, str] = {}
    python, site = Path(base), prefix
    if kind in ("venv", "editable"):
        site = installed(folder)
        python = python_of(site)
        install[3:3] = ["--python", str(python)]
    if kind == "target":
        site = folder
        variables = {"PYTHONPATH": str(site)}
        install += ["--target", str(folder)]
    elif kind == "user":
        variables = {"PYTHONUSERBASE": str(folder)}
        install[3:3] = ["--python", base]
        install += ["--user", "--break-system-packages"]
    elif kind == "prefix":
        variables = {"PYTHONPATH": str(site)}
        install += ["--ignore-installed", "--prefix", str(folder)]
    if kind == "editable":
        install += ["--no-build-isolation", "-e", str(PYMODULE)]
        variables["PYTHONPATH"] = ":".join(path for path in sys.path if path.endswith("-packages"))
    else:
        install.append(str(wheel))
    checked(*install, **variables)
    lib = BUILD / "lib" if kind == "editable" else site / "tms" / "lib"
    program, path = folder / "bin" / "tms", f"{lib / 'libtms.so'}\n"
    assert checked(program, "--path") == path
    assert checked(program, "run", "printenv", "LD_PRELOAD").startswith(path.strip())
    assert checked(python, "-m", "tms", "--path", **variables) == path
    preload = {"LD_PRELOAD": path.strip(), "LD_LIBRARY_PATH": str(BUILD / "sim")}
    preload["CUDASIM_SHARED"] = f"wheel-{os.getpid()}"  # a GPU that no other program fills
    with_regions = {"TMS_INIT_ENABLE": "1", "PATH": "/nowhere"}
    assert checked(python, "-c", PAUSES, **variables, **preload, **with_regions) == path


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


def genuine(folder: Path, version: str) -> Path:
    """A wheel with the names of the genuine torch_memory_saver, and nothing in its files."""
    files = {
        "torch_memory_saver/__init__.py": f"version = {version!r}\n",
        "torch_memory_saver/utils.py": "",
        ALIASES[1]: "",
        f"torch_memory_saver-{version}.dist-info/METADATA": (
            f"Metadata-Version: 2.1\nName: torch_memory_saver\nVersion: {version}\n"
        ),
        f"torch_memory_saver-{version}.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    record = f"torch_memory_saver-{version}.dist-info/RECORD"
    wheel = folder / f"torch_memory_saver-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**files, record: "".join(f"{name},,\n" for name in files)}.items():
            archive.writestr(name, text)
    return wheel


def test_two_packages_of_one_name(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    """Ours and the genuine one come and go in any order, and neither harms the other."""
    site = installed(tmp_path / "environment")
    python, switch = python_of(site), "libtms-torch-memory-saver"
    ours = "torch_memory_saver from libtms"

    def imports() -> str:
        code = "import torch_memory_saver as t; print(getattr(t, 'version', 'ours'))"
        return checked(python, "-c", code).strip()

    def doctor() -> tuple[str, str]:
        said = checked(python.parent / "tms", "doctor", "--json", "/bin/true")
        found = [f for f in json.loads(said)["findings"] if f["id"] == "torch_memory_saver"]
        assert len(found) < 2
        return next(((f["severity"], f"{f['what']} -> {f['do']}") for f in found), ("", ""))

    def says(severity: str, *words: str) -> None:
        found, text = doctor()
        assert found == severity and all(word in text for word in words), text

    pip(site, "install", wheels[0])
    assert doctor() == ("", "")
    pip(site, "install", genuine(tmp_path, "0.0.9"))  # ours second
    assert imports() == "0.0.9"
    says(
        "ok", f"{python} imports the genuine torch_memory_saver 0.0.9", "libtms[torch-memory-saver]"
    )
    pip(site, "install", "--find-links", wheels[1].parent, "libtms[torch-memory-saver]")
    assert imports() == "ours"
    says("ok", ours, "0.0.9 is installed too, and not imported", f"pip uninstall {switch}")

    code = """if True:
        import pathlib, pkgutil, sys
        sys.path.pop(next(at for at, path in enumerate(sys.path) if path.endswith("/dropin")))
        pkgutil.resolve_name(pathlib.Path(sys.argv[1]).read_text().strip())()
        import torch_memory_saver
        print(hasattr(torch_memory_saver, "version"))
    """  # as Python 3.15 does, which calls no function of a .pth file that has a .start file
    start = site / "libtms_torch_memory_saver.start"
    assert checked(python, "-c", code, start) == "False\n"

    pip(site, "install", genuine(tmp_path, "0.0.10"))  # an upgrade after ours
    assert imports() == "ours"
    pip(site, "uninstall", "-y", "torch_memory_saver")
    assert imports() == "ours"
    says("ok", f"{ours} {tms.__version__} -> ")

    pip(site, "install", tmp_path / "torch_memory_saver-0.0.10-py3-none-any.whl")  # ours first
    assert imports() == "ours"
    pip(site, "uninstall", "-y", switch)
    assert imports() == "0.0.10"
    says("ok", "the genuine torch_memory_saver 0.0.10")

    again = "pip install --force-reinstall --no-deps torch_memory_saver==0.0.10"
    (site / "torch_memory_saver" / "utils.py").unlink()
    says("warning", "lacks torch_memory_saver/utils.py", again)
    (site / "torch_memory_saver" / "__init__.py").unlink()
    says("warning", "cannot import torch_memory_saver 0.0.10", again)
    shutil.rmtree(site / "torch_memory_saver-0.0.10.dist-info")
    (site / "torch_memory_saver" / "left.py").touch()
    says("warning", "no __init__.py", f"remove {site / 'torch_memory_saver'}")


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
        assert checked(linked, LD_PRELOAD=f"{site / DROPIN / name}{others}") == "pausable\n"


def test_all_names_are_one_library(python: Path, site: Path) -> None:
    code = f"""
import ctypes
from torch_memory_saver.utils import get_binary_path_from_package as path
libraries = [ctypes.CDLL({str(site / DROPIN)!r} + "/" + name) for name in {ALIASES!r}]
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
        "tms.resume(3)\n"
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
