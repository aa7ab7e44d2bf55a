"""Runs passthrough.c's program without a preload and with each of some libraries in turn.

    python3 passthrough.py PROGRAM RUNS LIBRARY...

Prints the medians. The last line is a JSON object: per measurement and library the median
nanoseconds, the nanoseconds added to those without a preload, and the ratio to them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

NAMES = ["cudaFree(NULL)", "cudaMalloc+cudaFree 512 B", "cudaMalloc+cudaFree 2 MiB"]


def measure(program: str, preload: str) -> list[float]:
    """Nanoseconds of each of NAMES, in one process."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = preload
    out = subprocess.run([program], env=environment, stdout=subprocess.PIPE, check=True).stdout
    return [float(number) for number in out.split()]


def main() -> None:
    program, runs = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    libraries = ["", *map(os.path.abspath, sys.argv[3:])]
    measured: dict[str, list[list[float]]] = {library: [] for library in libraries}
    for run in range(runs):
        # in turn, and the first one changing, so that drift hits all alike
        for i in range(len(libraries)):
            library = libraries[(run + i) % len(libraries)]
            measured[library].append(measure(program, library))
    result: dict[str, dict[str, dict[str, float]]] = {}
    titles = [os.path.basename(library) or "no preload" for library in libraries]
    header = "".join(f"{title:>24}" for title in titles)
    print(f"{'ns, median of ' + str(runs):<26}{header}")
    for i, name in enumerate(NAMES):
        medians = [statistics.median(run[i] for run in measured[library]) for library in libraries]
        plain = medians[0]
        cells = [f"{plain:.1f}"]
        cells += [f"{ns:.1f} ({ns - plain:+.1f}, x{ns / plain:.3f})" for ns in medians[1:]]
        print(f"{name:<26}" + "".join(f"{cell:>24}" for cell in cells))
        result[name] = {
            title: {"ns": ns, "added_ns": round(ns - plain, 2), "ratio": round(ns / plain, 4)}
            for title, ns in zip(titles, medians)
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
