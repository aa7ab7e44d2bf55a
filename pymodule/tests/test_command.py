"""The command tms and python -m tms, what they find, and a light import."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import children
import pytest
from installed import checked
from simulator import BUILD, PYMODULE

import tms


def command(
    *arguments: str, python: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-m", "tms", *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_says_how() -> None:
    result = command()
    assert result.returncode == 0
    assert result.stdout.splitlines() == [
        f"tms {tms.version}",
        f"library    {tms.library_path()}",
        "preloaded  yes",
        f"to use it  LD_PRELOAD={tms.library_path()} python your_script.py",
        "to try it  tms demo          tms --help has the other commands",
    ]
    assert "preloaded  no\n" in command(LD_PRELOAD="").stdout


def test_path_only() -> None:
    assert command("--path").stdout == tms.library_path() + "\n"


def test_it_is_the_command() -> None:
    """python -m tms has the commands of build/bin/tms, with its output and exit codes."""
    help = command("--help")
    assert help.returncode == 0
    for name in ("tms [--path | --cflags --libs]\n", "demo ", "doctor ", "report "):
        assert f"  {name}" in help.stdout
    assert command("run", "printenv", "_TMS_PYTHON").returncode == 1  # no program inherits it
    assert command("--version").stdout == f"tms {tms.version}\n"
    unknown = command("unknown")
    assert (unknown.returncode, unknown.stderr) == (
        2,
        'tms: there is no command "unknown"; see tms --help\n',
    )


def test_demo(tmp_path: Path) -> None:
    """With a Python in a folder whose name has a space."""
    python = tmp_path / "it's a space" / "python"
    python.parent.mkdir()
    python.symlink_to(os.path.realpath(sys.executable))
    done = command("demo", python=str(python), LD_PRELOAD="", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["simulated"] is result["restored"] is result["losses_equal"] is True
    assert result["lent"] is True  # to another process


@pytest.mark.parametrize("name", ["a:b", "a b"])
def test_demo_of_a_library_that_cannot_be_preloaded(tmp_path: Path, name: str) -> None:
    library = tmp_path / name / "libtms.so"
    library.parent.mkdir()
    library.touch()
    done = command("demo", TMS_LIBRARY=str(library))
    assert done.returncode == 1
    assert f'takes no path with a space or a colon, such as "{library}"' in done.stderr


def test_library_is_missing() -> None:
    result = command("--path", TMS_LIBRARY="/nowhere/libtms.so")
    assert result.returncode == 1
    assert result.stdout == ""
    assert "TMS_LIBRARY names /nowhere/libtms.so" in result.stderr


def test_library_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = tmp_path / "libtms.so"
    named.write_bytes(b"")
    monkeypatch.setenv("TMS_LIBRARY", str(named))
    assert tms.library_path() == str(named)
    monkeypatch.setenv("TMS_LIBRARY", str(tmp_path / "none.so"))
    with pytest.raises(tms.LibraryNotFoundError) as caught:
        tms.library_path()
    assert isinstance(caught.value, FileNotFoundError)
    monkeypatch.delenv("TMS_LIBRARY")
    monkeypatch.setattr("tms._library._PACKAGE", tmp_path / "pymodule" / "tms")
    with pytest.raises(tms.LibraryNotFoundError, match=r"run scripts/build\.sh"):
        tms.library_path()
    packaged = tmp_path / "pymodule" / "tms" / "lib" / "libtms.so"
    built = tmp_path / "build" / "lib" / "libtms.so"
    for library in (built, packaged):
        library.parent.mkdir(parents=True)
        library.write_bytes(b"")
        assert tms.library_path() == str(library)


@pytest.mark.parametrize(
    "site", ["lib/python3.12/site-packages", "lib64/python3.9/dist-packages", "."]
)
def test_layouts_of_installers(site: str, tmp_path: Path) -> None:
    """A prefix, such as a virtual environment's, and the folder of pip install --target."""
    package = tmp_path / site / "tms"
    shutil.copytree(PYMODULE / "tms", package)
    (package / "lib").symlink_to(BUILD / "lib")
    program = tmp_path / "bin" / "tms"
    program.parent.mkdir()
    shutil.copy(BUILD / "bin" / "tms", program)
    path = f"{package / 'lib' / 'libtms.so'}\n"
    variables = {"PYTHONPATH": str(tmp_path / site)}
    assert checked(program, "--path") == path
    assert checked(sys.executable, "-m", "tms", "--path", **variables) == path
    said = checked(program, "run", "printenv", "LD_PRELOAD")
    assert said.split(":")[0] + "\n" == path
    assert f"libtms.so  {path}" in checked(program, "doctor", "/bin/true")


def test_import_is_light(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise AssertionError('tms imported torch')")
    out = children.output(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        before = set(sys.modules)
        import tms
        with tms.region("weights"), tms.disable():
            pass
        tms.pause(); tms.resume()
        print("torch" in sys.modules, "numpy" in sys.modules)
        """
    )
    assert out == "False False\n"
