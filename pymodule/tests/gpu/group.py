"""Groups of processes, one for each rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def meeting() -> str:
    """An address at which ranks can meet: a TCPStore's, because ranks poll a file every 10 ms."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def with_programs() -> dict[str, str]:
    """The environment in which programs find those of the folder programs."""
    folder = Path(__file__).resolve().parent / "programs"
    return {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}


@contextmanager
def started(
    count: int, program: list[str], *arguments: str, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs Python's `program`, with the rank and the arguments, in each of `count` processes."""
    processes = [
        subprocess.Popen(
            [sys.executable, *program, str(rank), *arguments],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()


def last_line(process: subprocess.Popen[str], within: float = 300) -> str:
    """What it prints last; it must succeed, `within` this number of seconds."""
    out, _ = process.communicate(timeout=within)
    assert process.returncode == 0, out
    return out.splitlines()[-1]
