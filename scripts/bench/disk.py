"""Contents in files, beside plain reads and writes of as many bytes on the same disk.

    scripts/bench.sh disk [DIRECTORY] [GIB] [SECONDS]

A program with GIB (4) of random contents, in allocations of 64 MiB, pauses to files in DIRECTORY
(.) and resumes, twice: the second pause overwrites the files of the first. By turns with that,
threads write and read as many bytes past the page cache (O_DIRECT), into as many files with
reserved space: some ways without a device, and one, "+", that copies each request from or to a
device, as a program does that does by hand what tms does. Before each step the disk finishes what
it had to do. All of it repeats until SECONDS (60) are over. Prints medians, and the ratios of tms
to the fastest plain way and to "+"; and last, JSON. It needs gcc and no PyTorch, and runs on the
simulator, too, where the processor makes the copies, so that the plain ways say little:

    LD_LIBRARY_PATH=build/sim scripts/bench.sh disk /var/tmp 1
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import usage  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
WAYS = ["8x4096", "16x4096", "8x32768", "32x1024", "+8x8192"]  # threads and KiB of a request
STEPS = {
    "new": "pause to new files",
    "again": "pause to the same files",
    "read": "resume",
}


def compiled() -> Path:
    program = ROOT / "build" / "bench" / "disk"
    program.parent.mkdir(parents=True, exist_ok=True)
    folders = [f for f in os.environ.get("LD_LIBRARY_PATH", "").split(":") if f]
    command = [os.environ.get("CC", "gcc"), "-O2", "-Wall", "-Wextra", "-pthread", "-o", program]
    command += [Path(__file__).with_suffix(".c"), ROOT / "build" / "lib" / "libtms.so"]
    command += [*(f"-L{folder}" for folder in folders), "-l:libcuda.so.1"]
    subprocess.run(command, check=True)
    return program


def measure(directory: str, size: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """GiB/s, by way and step."""
    environment = dict(os.environ, LD_PRELOAD=str(ROOT / "build" / "lib" / "libtms.so"))
    environment.setdefault("CUDASIM_MEMORY", str(3 * size))
    done = subprocess.run(
        [compiled(), directory, str(size), str(seconds), *WAYS],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    speeds: dict[str, dict[str, list[float]]] = {}
    for line in done.stdout.splitlines():
        way, step, took = line.split()
        speeds.setdefault(way, {}).setdefault(step, []).append(size / 2**30 / float(took))
    return speeds


def main() -> None:
    directory = sys.argv[1] if len(sys.argv) > 1 else "."
    size = int(float(sys.argv[2] if len(sys.argv) > 2 else 4) * 2**30) >> 26 << 26
    speeds = measure(directory, size, float(sys.argv[3] if len(sys.argv) > 3 else 60))
    table = {w: {s: statistics.median(v) for s, v in row.items()} for w, row in speeds.items()}
    print(f"{size / 2**30:.2f} GiB; GiB/s, medians of {len(speeds['tms']['new'])} rounds")
    print(f"{'':<26}" + "".join(f"{words:>26}" for words in STEPS.values()))
    for way, row in table.items():
        name = f"threads x KiB: {way}" if way != "tms" else way
        print(f"{name:<26}" + "".join(f"{row[step]:>26.2f}" for step in STEPS))
    ways = {"the fastest plain way": WAYS[:-1], "copies by hand": WAYS[-1:]}
    for name, beside in ways.items():
        ratios = [table["tms"][s] / max(table[w][s] for w in beside) for s in STEPS]
        print(f"{'tms / ' + name:<26}" + "".join(f"{ratio:>26.2f}" for ratio in ratios))
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
