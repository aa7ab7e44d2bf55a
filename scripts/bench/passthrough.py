"""Runs passthrough.c's program without a preload and with each of some libraries in turn.

    python3 passthrough.py PROGRAM RUNS LIBRARY...

Prints the medians and how far the middle half of the runs spreads. The last line is a JSON object:
per measurement and library the median nanoseconds, what was added to those without a preload, the
ratio to them, and the quartiles.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import usage  # noqa: F401

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
    for i, name in enumerate(NAMES):
        print(f"{name}, ns, median of {runs}")
        result[name] = {}
        plain = statistics.median(run[i] for run in measured[""])
        for library in libraries:
            low, ns, high = statistics.quantiles((run[i] for run in measured[library]), n=4)
            title = os.path.basename(library) or "no preload"
            print(
                f"  {title:<14}{ns:>10.1f}  {ns - plain:>+9.1f}  x{ns / plain:.3f}"
                f"  quartiles {low:.1f} to {high:.1f}"
            )
            result[name][title] = {
                "ns": round(ns, 2),
                "added_ns": round(ns - plain, 2),
                "ratio": round(ns / plain, 4),
                "q1": round(low, 2),
                "q3": round(high, 2),
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
