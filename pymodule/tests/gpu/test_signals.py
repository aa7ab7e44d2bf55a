"""A PyTorch program under `tms run` is paused from outside, and then told to end.

Ctrl-C, Kubernetes and systemd do that by these signals.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from device import MiB, free_memory, torch_on_gpu, unpreloaded

torch = torch_on_gpu()

TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
PROGRAM = """
import signal, sys, time
import torch

if "handler" in sys.argv:
    def stop(*_):
        print("handler", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, stop)
weights = torch.arange(1 << 28, device="cuda", dtype=torch.int32)
steps = torch.zeros(1 << 20, device="cuda")
print("ready", flush=True)
try:
    while True:
        steps += 1
        time.sleep(0.005)
except KeyboardInterrupt:
    good = bool((weights[:: 1 << 20] == torch.arange(0, 1 << 28, 1 << 20, device="cuda")).all())
    print("interrupted", good, flush=True)
"""


@contextmanager
def program(*arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    command = [str(TMS), "run", "--", sys.executable, "-c", PROGRAM, *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=unpreloaded(**variables),
    ) as child:
        try:
            assert child.stdout and child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def pause(child: subprocess.Popen[str], *flags: str) -> None:
    subprocess.run([TMS, "pause", str(child.pid), *flags], check=True)


@pytest.mark.parametrize("flags", [(), ("--everything",)], ids=["memory", "everything"])
@pytest.mark.parametrize(
    "number, argument, said",
    [(signal.SIGINT, "plain", "interrupted True\n"), (signal.SIGTERM, "handler", "handler\n")],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_paused_program_ends(
    number: signal.Signals, argument: str, said: str, flags: tuple[str, ...]
) -> None:
    with program(argument) as child:
        pause(child, *flags)
        child.send_signal(number)
        out, words = child.communicate(timeout=60)
        assert (child.returncode, out) == (0, said), words
        assert f"{number.name} came while this program is paused" in words


def test_a_signal_without_a_handler_ends_it_at_once() -> None:
    with program("plain") as child:
        pause(child)
        child.terminate()
        assert child.wait(timeout=60) == -signal.SIGTERM


def test_a_paused_program_ends_without_its_memory() -> None:
    """Its calls fail, PyTorch raises, and the interpreter comes to its end."""
    with program("handler", TMS_SIGNAL_WAIT="1") as child:
        pause(child)
        taken = torch.empty(free_memory() - 512 * MiB, dtype=torch.uint8, device="cuda")
        child.terminate()
        out, words = child.communicate(timeout=60)
        del taken
        torch.cuda.empty_cache()
        assert "SIGTERM came while this program is paused" in words
        assert f"tms resume {child.pid} brings its memory back" in words
        assert child.returncode >= 0, (child.returncode, out, words)
