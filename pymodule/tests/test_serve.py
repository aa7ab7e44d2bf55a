"""serve makes the process reachable for the same user's tms command."""

from __future__ import annotations

from pathlib import Path

import children
from simulator import BUILD

TMS = BUILD / "bin" / "tms"


def test_paused_and_resumed_by_another_process(tmp_path: Path) -> None:
    code = """
        import os, subprocess, sys, tms, cuda
        tms.serve()
        tms.serve()
        with tms.region("weights", backup="host"):
            pointer = cuda.malloc(8 << 20)
        cuda.write(pointer, b"contents")
        steer = lambda *arguments: subprocess.run(
            [sys.argv[1], *arguments, str(os.getpid())], check=True, capture_output=True, text=True
        ).stdout
        print(steer("pause", "--force"), end="")
        assert tms.stats()["devices"][0]["tags"][0]["paused_bytes"] == 8 << 20
        assert tms.stats()["devices"][0]["tags"][0]["paused_since"] > 1e9
        print(steer("resume"), end="")
        assert cuda.read(pointer, 8) == b"contents"
        cuda.free(pointer)
    """
    runtime = tmp_path / "run"
    runtime.mkdir()
    said = children.output(code, str(TMS), XDG_RUNTIME_DIR=str(runtime), TMPDIR=str(tmp_path))
    assert "paused, 8.00 MiB freed in" in said
    assert "resumed, 8.00 MiB in" in said
    assert not list((runtime / "tms").glob("*.sock"))


def test_a_resume_waits_for_the_operator(tmp_path: Path) -> None:
    """It lets other threads and signal handlers run, and is refused after a time that it names."""
    code = """
        import os, signal, subprocess, sys, threading, tms, cuda
        tms.serve()
        with tms.region("weights", backup="host"):
            pointer = cuda.malloc(8 << 20)
        cuda.write(pointer, b"contents")
        steer = lambda *arguments: subprocess.run(
            [sys.argv[1], *arguments, str(os.getpid())], check=True, capture_output=True, text=True
        )
        came = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: came.set())

        def operate():
            os.kill(os.getpid(), signal.SIGUSR1)
            assert came.wait(60)
            print("the handler has run", flush=True)
            steer("resume")

        with tms.paused("weights"):
            assert "it was paused already" in steer("pause", "--force").stdout
            for wait in (0, 0.3):
                try:
                    tms.resume(wait=wait)
                except tms.TmsError as error:
                    print(error.code, error)
            operator = threading.Thread(target=operate)
            operator.start()
        print(cuda.read(pointer, 8).decode())
        operator.join()
        tms.pause()
        tms.resume(wait=0)
        cuda.free(pointer)
    """
    said = children.output(code, str(TMS), XDG_RUNTIME_DIR=str(tmp_path), TMPDIR=str(tmp_path))
    refused = "800 resuming all tags failed: others keep this program paused: tms pause ("
    assert said.count(refused) == 2
    assert "the handler has run\ncontents\n" in said


def test_unused_variable_does_nothing(tmp_path: Path) -> None:
    """TMS_CONTROL in a process that allocates nothing pausable."""
    code = "import tms, os; print(len(os.listdir('/proc/self/task')))"
    said = children.output(code, XDG_RUNTIME_DIR=str(tmp_path), TMS_CONTROL="1")
    assert said == "1\n"
    assert not list(tmp_path.iterdir())
