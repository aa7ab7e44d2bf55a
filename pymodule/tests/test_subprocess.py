"""configure_subprocess sets LD_PRELOAD for children, and restores it exactly."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest

import tms

PATH = tms.library_path()


@pytest.mark.parametrize(
    ("before", "within"),
    [
        (None, PATH),
        ("", PATH),
        ("/other.so", f"{PATH}:/other.so"),
        ("/one.so /two.so", f"{PATH}:/one.so:/two.so"),
        (PATH, PATH),
        (f"/other.so:{PATH}", f"{PATH}:/other.so"),
    ],
)
def test_environment(before: str | None, within: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("LD_PRELOAD")
    else:
        monkeypatch.setenv("LD_PRELOAD", before)
    with tms.configure_subprocess():
        assert os.environ["LD_PRELOAD"] == within
        with tms.configure_subprocess():
            assert os.environ["LD_PRELOAD"] == within
        assert os.environ["LD_PRELOAD"] == within
    assert os.environ.get("LD_PRELOAD") == before
    with pytest.raises(ZeroDivisionError), tms.configure_subprocess():
        os.environ["LD_PRELOAD"] = "/changed.so"
        raise ZeroDivisionError
    assert os.environ.get("LD_PRELOAD") == before


def test_bodies_that_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in two threads; a body is not left without the library, nor the program with it."""
    monkeypatch.setenv("LD_PRELOAD", "/other.so")
    first, second = tms.configure_subprocess(), tms.configure_subprocess()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert os.environ["LD_PRELOAD"] == f"{PATH}:/other.so"
    second.__exit__(None, None, None)
    assert os.environ["LD_PRELOAD"] == "/other.so"


def test_path_that_ld_preload_cannot_express(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "with space" / "libtms.so"
    library.parent.mkdir()
    library.write_bytes(b"")
    monkeypatch.setenv("TMS_LIBRARY", str(library))
    with pytest.raises(tms.TmsError, match="space or a colon"), tms.configure_subprocess():
        pass


WORKERS = """
import multiprocessing, sys
import cuda, tms
from expecting import raises

def work(number):
    with tms.region(f"worker {number}", backup="host"):
        pointer = cuda.malloc(4 << 20)
    cuda.write(pointer, bytes([number]) * 16)
    for _ in range(5):
        with tms.paused():
            pass
    return cuda.read(pointer, 16) == bytes([number]) * 16

if __name__ == "__main__":
    context, used = multiprocessing.get_context(sys.argv[1]), sys.argv[2] == "used"
    assert not used or work(1)
    with tms.configure_subprocess(), context.Pool(3) as pool:
        assert pool.map(work, range(6)) == [True] * 6
    if used:
        assert work(2)
    else:
        with raises(tms.NotPreloadedError):
            tms.pause()
"""


@pytest.mark.parametrize(
    ("method", "parent"), [("spawn", "used"), ("forkserver", "used"), ("spawn", "without")]
)
def test_workers(method: str, parent: str, tmp_path: Path) -> None:
    """They use the library independently: of a parent that has used it, or that is without it."""
    program = tmp_path / "program.py"
    program.write_text(WORKERS)
    done = children.python(program, method, parent, preloaded=parent == "used")
    assert done.returncode == 0, done.stderr
