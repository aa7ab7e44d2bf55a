"""On a machine that lacks something each script works, or says what is missing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest
from checkout import ROOT, copied, path_of
from simulator import BUILD, HANGS, PYMODULE

SCRIPTS = sorted(
    script
    for script in (ROOT / "scripts").glob("**/*.sh")
    if script.name not in ("current.sh", "require.sh", "usage.sh")
)


def run(command: str, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command in an environment with only these variables."""
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; {command}"],
        cwd=cwd,
        env={"TMS_NO_INSTALL": "1", "PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The scripts in a checkout of their own, whose path is awkward for every tool."""
    return copied(tmp_path / "a b" / 'it\'s "one"')


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_help(script: Path) -> None:
    """The scripts print help from any folder, and do nothing else."""
    relative = os.path.relpath(script, "/")
    done = run(f"{relative} --help", cwd=Path("/"))
    first = script.read_text().splitlines()[1]
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith(first.removeprefix("# "))


@pytest.mark.parametrize(
    "script",
    [ROOT / "scripts" / "picture.py", *sorted((ROOT / "scripts" / "bench").glob("*.py"))],
    ids=lambda script: script.name,
)
def test_help_of_python_scripts(script: Path) -> None:
    done = run(f"{sys.executable} {script} --help", cwd=Path("/"))
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[0] in script.read_text()


@pytest.mark.parametrize(
    "name", ["build", "check", "demo", "generate-kernels", "release", "test", "wheel"]
)
def test_unknown_arguments_are_refused(name: str) -> None:
    done = run(f"scripts/{name}.sh --unknown")
    assert done.returncode == 2
    assert "--unknown" in done.stderr.splitlines()[0]


def test_tests_refuse_a_path_that_cannot_be_preloaded(copy: Path) -> None:
    """The script and pytest report it at once."""
    shutil.copytree(PYMODULE / "tests", copy / "pymodule" / "tests")
    pytest_ = f"cd pymodule; {sys.executable} -m pytest tests/test_stats.py"
    for command in ("scripts/test.sh", "scripts/check.sh", pytest_):
        done = run(command, cwd=copy)
        assert done.returncode != 0
        assert f"LD_PRELOAD takes no path with a space or a colon, such as {copy}" in done.stderr


@pytest.mark.parametrize(
    ("require", "tools", "words"),
    [
        ("require_cc", "", "missing: a C compiler, gcc. Install gcc"),
        ("require_cc", "gcc", "missing: what gcc needs for a C program"),  # no as, no ld
        ("require_cc; cc --version", "gcc as ld", ""),
        ("require_python", "", "missing: Python 3.9 or newer"),
    ],
)
def test_missing_tools(require: str, tools: str, words: str, copy: Path, tmp_path: Path) -> None:
    """Without words the tools are enough."""
    path = path_of(tmp_path / "bin", *tools.split())
    done = run(f"source scripts/require.sh; {require}", cwd=copy, PATH=path)
    assert done.returncode == bool(words), done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("says", "works"),
    [
        ("go1.26.0", True),
        ("go1.27rc1", True),
        ("devel go1.27-abcdef", True),
        ("go1.25.9", False),
        ("go: download go1.26.0 for linux/amd64: toolchain not available", False),
        ("go: errors parsing go.mod: invalid go version '1.26.0'", False),
    ],
)
def test_versions_of_go(says: str, works: bool, copy: Path, tmp_path: Path) -> None:
    path = path_of(tmp_path / "bin")
    go = tmp_path / "bin" / "go"
    go.write_text(f'#!/bin/sh\ncase $2 in GOVERSION) echo "{says}" ;; *) echo {tmp_path} ;; esac\n')
    go.chmod(0o755)
    done = run("source scripts/require.sh; require_go; echo works", cwd=copy, PATH=path)
    assert (done.stdout == "works\n") is works
    if not works:
        assert done.stderr.startswith(f"missing: Go 1.26 or newer. This one says: {says}\n")


def test_variables_of_go_that_are_for_other_programs(copy: Path) -> None:
    done = run(
        "source scripts/require.sh; require_go; go env GOOS GOWORK; go list ./none || go list -m",
        cwd=copy,
        GOOS="plan9",
        GOROOT="/nowhere",
        GO111MODULE="off",
        GOFLAGS="-mod=vendor",
        GOWORK="/nowhere/go.work",
        GOEXPERIMENT="none",
    )
    assert done.stdout == "linux\noff\ntms\n", done.stderr


@pytest.mark.parametrize("script", ["scripts/demo.sh", "source scripts/require.sh; require_python"])
def test_an_old_python(script: str, copy: Path, tmp_path: Path) -> None:
    """RHEL 8 has 3.6 by the name python3, and others beside it."""
    path = path_of(tmp_path / "bin", "find")
    python = tmp_path / "bin" / "python3"
    python.write_text("#!/bin/sh\necho Python 3.6\nexit 1\n")
    python.chmod(0o755)
    done = run(script, cwd=copy, PATH=path)
    assert done.returncode == 1
    words = "missing: Python 3.9 or newer. python3 says: Python 3.6\n"
    assert done.stderr.startswith(words) and "set PYTHON=python3.11" in done.stderr
    python.rename(tmp_path / "bin" / "python3.6")
    done = run("source scripts/require.sh; require_interpreter", PATH=path, PYTHON=sys.executable)
    assert done.returncode == 0, done.stderr


def test_temporary_files_go_where_they_can(copy: Path) -> None:
    """A batch system's TMPDIR is missing outside of its job."""
    command = "source scripts/require.sh; require_build_folder; echo ${TMPDIR:-none}"
    done = run(command, cwd=copy, TMPDIR="/nowhere")
    assert done.stdout == "none\n"
    assert done.stderr.startswith("== TMPDIR=/nowhere cannot be written: taking /tmp\n")


def test_demo_in_an_odd_path_beside_what_a_user_has_set(copy: Path) -> None:
    """It runs what was built, also where a script or a source has been changed since."""
    for path in copy.rglob("*"):
        os.utime(path, (0, 0))  # older than the build, or the demo would build
    (copy / "build").symlink_to(BUILD)
    variables = {"TMS_LIBRARY": "/nowhere", "PYTHONSAFEPATH": "1", "CUDA_VISIBLE_DEVICES": "GPU-1"}
    done = run("scripts/demo.sh", cwd=copy, **variables)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["losses_equal"] is True
    assert "tms: " not in done.stderr  # it warns of TMS_NO_INSTALL, among others


def test_go_without_a_home(copy: Path) -> None:
    done = run("source scripts/require.sh; require_go; go env GOCACHE GOMODCACHE", cwd=copy)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == [f"{copy}/build/_go/cache", f"{copy}/build/_go/pkg/mod"]


@pytest.mark.skipif(os.environ.get("TESTS_FULL") != "1", reason="builds all: for the soak")
def test_build_with_a_fetched_go_in_an_odd_path(copy: Path, tmp_path: Path) -> None:
    """Go replaces no file below its module cache, where a fetched toolchain lies."""
    for source in ROOT.iterdir():
        if source.name not in ("build", ".git") and not (copy / source.name).exists():
            (copy / source.name).symlink_to(source)
    go = shutil.which("go") or "/usr/local/go/bin/go"
    goroot, modules = run(f"{go} env GOROOT GOMODCACHE", HOME=os.environ["HOME"]).stdout.split()
    fetched = tmp_path / "modules" / "golang.org" / "toolchain"
    fetched.parent.mkdir(parents=True)
    fetched.symlink_to(goroot)
    done = run(
        "scripts/build.sh && scripts/demo.sh",
        cwd=copy,
        HOME=os.environ["HOME"],
        PATH=f"{fetched}/bin:{os.environ['PATH']}",
        GOMODCACHE=str(tmp_path / "modules"),
        GOROOT=str(fetched),
        GOPROXY=f"file://{modules}/cache/download",
        GOFLAGS="-modcacherw",
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["losses_equal"] is True


def test_odd_path_has_a_plain_name(copy: Path, tmp_path: Path) -> None:
    """It is for tools that split flags at spaces and quotes; nothing of it is left behind."""
    command = "source scripts/require.sh; require_go; pwd; pwd -P; go list -m"
    done = run(command, cwd=copy)
    plain, real, module = done.stdout.splitlines()
    assert (real, module) == (str(copy), "tms")
    assert set(plain) <= set("/._") | set(map(chr, range(48, 123))) and not Path(plain).exists()


def test_folder_of_another_user(copy: Path, tmp_path: Path) -> None:
    if not children.becomes(65534):
        pytest.skip("no process can become another user here")
    for folder in (copy, *copy.parents):
        if folder.is_relative_to(tmp_path.parent.parent):
            folder.chmod(0o755)
    command = "setpriv --reuid=65534 --regid=65534 --clear-groups bash -c '{}'"
    for require in ("require_go", "require_python"):
        done = run(command.format(f"source scripts/require.sh; {require}"), cwd=copy)
        assert done.returncode == 1
        assert done.stderr == (
            f"{copy}/build cannot be written: copy the checkout to where you may write, "
            "and build there.\n"
        )


@pytest.mark.thorough
def test_half_made_environment_is_made_anew(copy: Path) -> None:
    command = [sys.executable, "-m", "venv", "--without-pip", copy / "build" / "venv"]
    subprocess.run(command, check=True)
    done = run(
        "source scripts/require.sh; (require_python) || build/venv/bin/python -m pip --version",
        cwd=copy,
        PIP_NO_INDEX="1",
    )
    assert 'missing: packages of pymodule\'s "dev" extra' in done.stderr
    assert done.stdout.splitlines()[-1].startswith("pip "), done.stderr


def test_packages_are_named_before_they_are_installed(tmp_path: Path) -> None:
    path = path_of(tmp_path / "bin")
    for name, says in (("apt-get", "apt-get runs"), ("id", "0")):
        tool = tmp_path / "bin" / name
        tool.unlink(missing_ok=True)
        tool.write_text(f"#!/bin/sh\necho {says} >&{1 if name == 'id' else 2}\n")
        tool.chmod(0o755)
    command = "source scripts/require.sh; apt_install gcc libc6-dev"
    done = run(command, PATH=path, TMS_NO_INSTALL="")
    assert done.stderr == (
        "== installing gcc libc6-dev with apt-get, as root (TMS_NO_INSTALL=1 forbids it)\n"
        "apt-get runs\n"
    )
    assert run(command, PATH=path).stderr == ""
