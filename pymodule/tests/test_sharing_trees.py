"""Programs that are trees of processes, as servers of engines are, under `tms run --share`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from children import TESTS
from reaching import TMS, of_session, undisturbed
from simulator import BUILD

MiB = 1 << 20
SERVER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
ENGINE = f"""
import sys, cuda
held = cuda.malloc(140 * {MiB})
print("ready", flush=True)
for _ in sys.stdin:
    cuda.write(held, b"work")
    print("worked", flush=True)
"""


@contextlib.contextmanager
def served() -> Iterator[subprocess.Popen[str]]:
    """A server, which has no memory, and its engine, which takes 140 of 200 MiB."""
    with subprocess.Popen(
        [TMS, "run", "--share", "--at-least", "0", "--", sys.executable, "-c", SERVER, ENGINE],
        env={
            **undisturbed(),
            "PYTHONPATH": str(TESTS),
            "LD_LIBRARY_PATH": str(BUILD / "sim"),
            "CUDASIM_MEMORY": "200M",
            "CUDASIM_SHARED": f"trees-{os.getpid()}",
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, 9)


def line(server: subprocess.Popen[str]) -> str:
    assert server.stdout
    return server.stdout.readline().strip()


def test_each_tree_has_its_bytes_while_the_other_works() -> None:
    with served() as one, served() as other:
        assert {line(one), line(other)} == {"ready"}
        for works in (one, other, one):
            assert works.stdin
            print("work", file=works.stdin, flush=True)
            assert line(works) == "worked"
            has = [of_session(tree.pid, "physical_bytes") for tree in (one, other)]
            assert has == [140 * MiB if tree is works else 0 for tree in (one, other)]
            for tree in (one, other):
                assert of_session(tree.pid, "live_bytes") == 140 * MiB
