"""Runs a program without a preload and with each of some preloads in turn; compares its figures.

    python3 inturn.py RUNS PROGRAM [ARGUMENT...] -- PRELOAD...

The program prints a line for each thing that it measures: nanoseconds, and what that is. Prints the
medians, what a preload adds, the ratio, and how far the middle half of the runs spreads. The last
line is a JSON object of that.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import usage  # noqa: F401

NONE = "no preload"


def measure(program: list[str], preload: str) -> dict[str, float]:
    """Nanoseconds of each thing that is measured, in one process."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run(program, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    lines = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    return {what: float(nanoseconds) for nanoseconds, what in lines}


def main() -> None:
    split = sys.argv.index("--")
    runs, program = int(sys.argv[1]), sys.argv[2:split]
    ways = {NONE: ""}
    for preload in sys.argv[split + 1 :]:
        libraries = [os.path.abspath(library) for library in preload.split()]
        ways[" and ".join(map(os.path.basename, libraries))] = " ".join(libraries)
    names = list(ways)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for run in range(runs):
        # in turn, and the first one changing, so that drift hits all alike
        for i in range(len(names)):
            name = names[(run + i) % len(names)]
            measured[name].append(measure(program, ways[name]))
    result: dict[str, dict[str, dict[str, float]]] = {}
    for what in measured[NONE][0]:
        print(f"{what}, ns, median of {runs}")
        result[what] = {}
        plain = statistics.median(run[what] for run in measured[NONE])
        for name in names:
            low, ns, high = statistics.quantiles((run[what] for run in measured[name]), n=4)
            print(
                f"  {name:<30}{ns:>10.2f}  {ns - plain:>+9.2f}  x{ns / plain:.3f}"
                f"  quartiles {low:.2f} to {high:.2f}"
            )
            result[what][name] = {
                "ns": round(ns, 2),
                "added_ns": round(ns - plain, 2),
                "ratio": round(ns / plain, 4),
                "q1": round(low, 2),
                "q3": round(high, 2),
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
