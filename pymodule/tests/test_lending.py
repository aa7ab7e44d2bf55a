"""docs/lending.md: a kernel reads cells from its standard input while its memory is lent."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import TESTS
from reaching import TMS, undisturbed
from simulator import BUILD, HANGS

KERNEL = """
    import signal, sys, cuda
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as ipykernel does for a cell
    for cell in sys.stdin:
        try:
            exec(cell)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        except Exception as error:
            print("failed:", error, flush=True)
"""


class Notebook:
    """A kernel, and what its cells print."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def begin(self, cell: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(cell + "\n")
        self.process.stdin.flush()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def run(self, cell: str) -> str:
        self.begin(cell)
        return self.line()

    def lent_to(self) -> list[str]:
        (found,) = json.loads(steer("ps", self, "--json"))
        return [kept["lent_to"] for kept in found.get("paused_by", [])]


def steer(what: str, notebook: Notebook, *more: str) -> str:
    call = [TMS, what, str(notebook.process.pid), *more]
    return subprocess.run(call, check=True, capture_output=True, text=True, timeout=HANGS).stdout


@contextlib.contextmanager
def started(*before: str | Path, **variables: str) -> Iterator[Notebook]:
    environment = {
        **undisturbed(),
        "PYTHONPATH": str(TESTS),
        "LD_LIBRARY_PATH": str(BUILD / "sim"),
        "CUDASIM_MEMORY": "16M",
        "CUDASIM_SHARED": f"lending-{os.getpid()}",
        **variables,
    }
    with subprocess.Popen(
        [*before, sys.executable, "-c", textwrap.dedent(KERNEL)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Notebook(process)
        finally:
            process.kill()


@pytest.fixture
def notebook() -> Iterator[Notebook]:
    with started(TMS, "run", "--", TMS_SIGNAL_WAIT="0.2") as kernel:
        cell = "p = cuda.malloc(8 << 20); cuda.write(p, b'contents'); print('ready', flush=True)"
        assert kernel.run(cell) == "ready"
        yield kernel


READ = "print('begun', flush=True); print(cuda.read(p, 8).decode(), flush=True)"


def test_a_cell_waits_for_the_end_of_the_lend(notebook: Notebook) -> None:
    steer("lend", notebook, "--for", "1h", "--to", "bert")
    assert notebook.run(READ) == "begun"
    assert notebook.lent_to() == ["bert"]
    steer("resume", notebook)
    assert notebook.line() == "contents"


def test_interrupt_takes_the_memory_back(notebook: Notebook) -> None:
    steer("lend", notebook, "--for", "1h", "--to", "bert")
    assert notebook.run(READ) == "begun"
    notebook.process.send_signal(signal.SIGINT)
    said = notebook.line()
    assert (notebook.line() if said == "contents" else said) == "interrupted"
    assert notebook.run(READ) == "begun"
    assert notebook.line() == "contents"
    assert notebook.lent_to() == []


def test_interrupt_without_room(notebook: Notebook) -> None:
    """The cell fails, the lend goes on, and the notebook works again after it."""
    steer("lend", notebook, "--for", "1h", "--to", "bert")
    with started() as bert:
        assert bert.run("q = cuda.malloc(15 << 20); print('ready', flush=True)") == "ready"
        assert notebook.run(READ) == "begun"
        notebook.process.send_signal(signal.SIGINT)
        said = notebook.line()
        assert said == "interrupted" or "401" in said, said
        assert notebook.lent_to() == ["bert"]
        assert bert.run("cuda.free(q); print('free', flush=True)") == "free"
    steer("resume", notebook)
    assert notebook.run("print(cuda.read(p, 8).decode(), flush=True)") == "contents"
