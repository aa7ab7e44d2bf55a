"""pause(everything=True): the driver takes the rest, by the command, and resume brings it back."""

from __future__ import annotations

import os
from pathlib import Path

import children
import pytest

ALLOCATE = """
    import os, threading, tms, cuda
    from expecting import raises
    with tms.region("weights", backup="host"):
        pointer = cuda.malloc(8 << 20)
    cuda.write(pointer, b"contents")
"""

HOG = """
import cuda
cuda.malloc(cuda.free_memory())
print("full", flush=True)
input()
"""


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets, files and devices of the test's own."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("CUDASIM_SHARED", f"everything-{os.getpid()}")


def test_there_and_back() -> None:
    """Contexts and ordinary memory go too; before CUDA is used there is nothing to go."""
    code = """
    import tms
    from expecting import raises
    assert tms.stats()["everything"] is False
    with raises(tms.TmsError, "no process that uses CUDA"):
        tms.pause(everything=True)
    import cuda
    cuda.free(cuda.malloc(8))
    assert tms.pause(everything=True) == 0
    assert tms.stats()["everything"]
    assert tms.resume() == 0
    with tms.region("weights", backup="host"):
        pointer = cuda.malloc(8 << 20)
    cuda.write(pointer, b"contents")
    assert tms.pause(everything=True, timeout=600) == 8 << 20
    stats = tms.stats()
    assert stats["everything"] and stats["devices"][0]["free_bytes"] == 0, stats
    assert stats["devices"][0]["tags"][0]["host_bytes"] == 8 << 20
    assert tms.resume() == 8 << 20
    assert not tms.stats()["everything"] and cuda.read(pointer, 8) == b"contents"
    """
    children.output(code)


def test_a_resume_without_memory_calls_no_cuda() -> None:
    """PyTorch's cache cannot be released while all calls of CUDA wait."""
    code = """
    from tms import _torch
    def never():
        raise AssertionError("a call of CUDA")
    _torch.release_cache = never
    tms.pause(everything=True)
    hog = [sys.executable, "-c", os.environ["HOG"]]
    with subprocess.Popen(hog, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as hog:
        assert hog.stdout.readline() == "full\\n"
        for _ in range(2):
            with raises(tms.OutOfMemoryError, "other processes have the memory that the driver"):
                tms.resume()
        threading.Timer(0.3, hog.kill).start()
        tms.resume(wait=600)
    assert cuda.read(pointer, 8) == b"contents"
    """
    imports = ALLOCATE.replace("os,", "os, subprocess, sys,")
    children.output(imports + code, HOG=HOG, CUDASIM_CONTEXT="8M")


def test_a_process_that_is_lost_says_so() -> None:
    """The driver finds too little memory after the look: no later resume can bring it back."""
    code = """
    tms.pause(everything=True)
    os.environ["CUDASIM_FAIL"] = "cuCheckpointProcessRestore:1:2"
    for _ in range(2):
        with raises(tms.ContentsError, "The process is lost"):
            tms.resume()
        os.environ["CUDASIM_FAIL"] = ""
    os._exit(7)
    """
    result = children.run(ALLOCATE + code)
    assert result.returncode == 7, result.stderr


def test_errors() -> None:
    code = """
    for arguments, words in (
        ({"tag": "a"}, "everything=True pauses all tags with their contents: leave tag"),
        ({"discard": True}, "everything=True pauses all tags with their contents: leave tag"),
        ({"timeout": -1}, "timeout must be a number of seconds, 0 or more, not -1"),
        ({"timeout": float("nan")}, "timeout must be a number of seconds"),
    ):
        with raises(ValueError, words):
            tms.pause(everything=True, **arguments)
    os.environ["LD_LIBRARY_PATH"] = ""
    with raises(tms.NotSupportedError, "the driver's checkpoint is not available"):
        tms.pause(everything=True)
    os.environ["TMS_COMMAND"] = "/nonexistent"
    with raises(tms.BackupError, "/nonexistent cannot be started"):
        tms.pause(everything=True)
    assert cuda.read(pointer, 8) == b"contents"
    child = os.fork()
    if child == 0:
        with raises(tms.ForkedError):
            tms.pause(everything=True)
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    children.output(ALLOCATE + code)


def test_without_the_gate_it_says_once_that_no_thread_may_poll() -> None:
    code = """
    for _ in range(2):
        tms.pause(everything=True)
        tms.resume()
    """
    result = children.run(ALLOCATE + code)
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("none may ask until the resume") == 1


def test_calls_while_everything_is_paused_return() -> None:
    """Their driver calls would wait for the resume, which the same thread makes."""
    code = """
    with tms.region("cache"):
        cuda.malloc(8 << 20)
    tms.pause(everything=True, timeout=600)
    assert tms.pause() == tms.pause("weights") == tms.pause(["weights"]) == 0
    tms.prepare("weights", wait=True)
    tms.prepare()
    for call in (
        lambda: tms.pause(discard=True),
        lambda: tms.pause("weights", discard=True),
        lambda: tms.pause(["weights", "cache"], discard=["cache"]),
        lambda: tms.pool("caching"),
        tms.trim,
    ):
        with raises(tms.TmsError, "everything of this process is paused", "Resume it first"):
            call()
    tms.resume()
    assert cuda.read(pointer, 8) == b"contents"
    """
    children.output(ALLOCATE + code)


def test_a_process_becomes_another_user() -> None:
    """Its socket is the first user's, where the other's commands do not look."""
    if not children.becomes(54321):
        pytest.skip("no process can become another user here")
    code = (
        ALLOCATE
        + """
    tms.serve()
    os.setgid(54321); os.setuid(54321)
    with raises(tms.TmsError, "as user 0 and has become user 54321", "Have root run"):
        tms.pause(everything=True)
    assert tms.pause() == tms.resume() == 8 << 20
    assert cuda.read(pointer, 8) == b"contents"
    """
    )
    children.output(code)
