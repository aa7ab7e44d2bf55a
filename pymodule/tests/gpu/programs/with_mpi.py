"""Two ranks of MPI that send each other arrays of CuPy's over UCX, small ones and large ones.

UCX must be built for CUDA; MPI itself need not be, for plain sends. The program starts the ranks by
mpiexec, which must be in PATH.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import cupy
import steps
from mpi4py import MPI

COUNT = 32 << 20  # numbers of 4 bytes
LENGTHS = (64, 5000, 300_000, COUNT)  # UCX has a protocol for each
INPUT = "RANKS_INPUT"
"""Names a pipe that ends with the standard input of the program, which mpiexec does not hand on."""


def has_cuda() -> bool:
    """Reports whether the UCX that MPI uses has its module for CUDA."""
    mapped = Path("/proc/self/maps").read_text().split()
    folders = {Path(word).parent for word in mapped if "/libucp" in word}
    return any(any(folder.glob("ucx/libuct_cuda*.so*")) for folder in folders)


def launch() -> int:
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "input"
        os.mkfifo(pipe)
        ranks = subprocess.Popen(
            ["mpiexec", "-n", "2", sys.executable, *sys.argv],
            env={**os.environ, INPUT: str(pipe)},
            stdin=subprocess.DEVNULL,
        )

        def hand_on() -> None:
            with pipe.open("wb"):
                sys.stdin.read()

        threading.Thread(target=hand_on, daemon=True).start()
        return ranks.wait()


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    world = MPI.COMM_WORLD
    peer = world.rank ^ 1
    values = cupy.arange(COUNT, dtype=cupy.uint32) + world.rank
    received = cupy.empty_like(values)

    def exchange(number: int) -> None:
        values[:] = values * 1664525 + number + world.rank
        cupy.cuda.get_current_stream().synchronize()
        for tag, length in enumerate(LENGTHS):
            first = number % 1000 * 4 if length < COUNT else 0
            there = slice(first, first + length)
            MPI.Request.Waitall(
                [
                    world.Irecv(received[there], peer, tag),
                    world.Isend(values[there], peer, tag),
                ]
            )
            values[there] ^= received[there] >> 3
            cupy.cuda.get_current_stream().synchronize()

    if world.rank == 1:
        while (number := world.recv(source=0)) >= 0:
            exchange(number)
        return
    os.dup2(os.open(os.environ[INPUT], os.O_RDONLY), sys.stdin.fileno())
    run = steps.Run(options.steps)
    for number in run.steps():
        world.send(number, 1)
        exchange(number)
        run.note(int(values.sum(dtype=cupy.uint64)), int(received.sum(dtype=cupy.uint64)))
        if number == 0:
            run.ready(4 * values.nbytes)
    world.send(-1, 1)
    run.note(values.get().tobytes())
    run.end()


if __name__ == "__main__":
    if INPUT in os.environ:
        main()
    else:
        sys.exit(launch())
elif not has_cuda():
    raise ImportError("MPI has no UCX that is built for CUDA")
