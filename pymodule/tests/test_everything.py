"""pause(everything=True): the driver takes the rest, by the command, and resume brings it back."""

from __future__ import annotations

from pathlib import Path

import children
from simulator import BUILD

TMS = BUILD / "bin" / "tms"

ALLOCATE = """
    import os, subprocess, threading, time, tms, cuda
    with tms.region("weights", backup="host"):
        pointer = cuda.malloc(8 << 20)
    cuda.write(pointer, b"contents")
"""


def said(code: str, runtime: Path, **variables: str) -> str:
    return children.output(
        ALLOCATE + code, XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(runtime), **variables
    )


def test_there_and_back(tmp_path: Path) -> None:
    """By itself, and by another process; meanwhile a thread's CUDA call waits."""
    code = """
    for outside in (False, True):
        assert tms.pause(everything=True, timeout=600) == 8 << 20
        stats = tms.stats()
        assert stats["everything"] and stats["devices"][0]["free_bytes"] == 0, stats
        assert stats["devices"][0]["tags"][0]["host_bytes"] == 8 << 20
        called = []
        thread = threading.Thread(target=lambda: called.append(cuda.malloc(1 << 20)))
        thread.start()
        time.sleep(0.1)
        assert not called
        if outside:
            subprocess.run([os.environ["COMMAND"], "resume", str(os.getpid())], check=True)
        else:
            assert tms.resume() == 8 << 20
        thread.join(600)
        cuda.free(called[0])
        assert cuda.read(pointer, 8) == b"contents"
        assert not tms.stats()["everything"]
    cuda.free(pointer)
    print("done")
    """
    assert said(code, tmp_path, COMMAND=str(TMS)).endswith("done\n")


def test_a_resume_without_memory_calls_no_cuda(tmp_path: Path) -> None:
    """PyTorch's cache cannot be released while all calls of CUDA wait."""
    code = """
    from tms import _torch
    def never():
        raise AssertionError("a call of CUDA")
    _torch.release_cache = never
    tms.pause(everything=True)
    for fails, wait in (("1", 0), ("1", 600)):
        os.environ["CUDASIM_FAIL"] = f"cuCheckpointProcessRestore:{fails}:2"
        if wait:
            threading.Timer(0.3, os.environ.pop, ["CUDASIM_FAIL"]).start()
        try:
            tms.resume(wait=wait)
            print("resumed")
        except tms.OutOfMemoryError as error:
            print(error)
    assert cuda.read(pointer, 8) == b"contents"
    cuda.free(pointer)
    """
    lines = said(code, tmp_path).splitlines()
    assert len(lines) == 2, lines
    assert "other processes have the memory that the driver needs" in lines[0]
    assert lines[1] == "resumed"


def test_before_anything_pausable(tmp_path: Path) -> None:
    """Contexts and ordinary memory go too; before CUDA is used there is nothing to go."""
    code = """
    import os, tms, cuda
    assert tms.stats()["everything"] is False
    try:
        tms.pause(everything=True)
    except tms.TmsError as error:
        print(error)
    cuda.free(cuda.malloc(8))
    assert tms.pause(everything=True) == 0
    assert tms.stats()["everything"]
    assert tms.resume() == 0
    assert not tms.stats()["everything"]
    """
    line = children.output(code, XDG_RUNTIME_DIR=str(tmp_path), TMPDIR=str(tmp_path))
    assert "no process that uses CUDA" in line


def test_errors(tmp_path: Path) -> None:
    code = """
    nan = float("nan")
    for arguments in ({"tag": "a"}, {"progress": True}, {"timeout": -1}, {"timeout": nan}):
        try:
            tms.pause(everything=True, **arguments)
        except ValueError as error:
            print(error)
    os.environ["LD_LIBRARY_PATH"] = ""
    try:
        tms.pause(everything=True)
    except tms.NotSupportedError as error:
        print(error)
    os.environ["TMS_COMMAND"] = "/nonexistent"
    try:
        tms.pause(everything=True)
    except tms.TmsError as error:
        print(error.code, error)
    assert cuda.read(pointer, 8) == b"contents"
    cuda.free(pointer)
    child = os.fork()
    if child == 0:
        try:
            tms.pause(everything=True)
        except tms.ForkedError:
            os._exit(7)
        os._exit(8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    lines = said(code, tmp_path).splitlines()
    assert len(lines) == 6, lines
    assert lines[0] == lines[1] == "everything is paused without a tag, discard and progress"
    assert lines[2].startswith("timeout must be a number of seconds, 0 or more, not -1")
    assert "the driver's checkpoint is not to be had" in lines[4]
    assert lines[5].startswith("304 ") and "/nonexistent cannot be started" in lines[5]


def test_without_the_gate_it_says_once_that_no_thread_may_poll(tmp_path: Path) -> None:
    code = """
    for _ in range(2):
        tms.pause(everything=True)
        tms.resume()
    """
    result = children.run(ALLOCATE + code, XDG_RUNTIME_DIR=str(tmp_path), TMPDIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("none may ask until the resume") == 1
