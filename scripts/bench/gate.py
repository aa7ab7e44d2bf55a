"""Runs gate.c's program without a preload, with libtms.so, and with libtms_reach.so beside it.

    python3 gate.py PROGRAM RUNS LAUNCHES FOLDER

FOLDER has the two libraries. Prints the medians in nanoseconds a launch, and a poll, what the
libraries add, the ratio, and how far the middle half of the runs spreads. The last line is a JSON
object of that.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

import usage  # noqa: F401

CALLS = ("cuLaunchKernel", "cuStreamQuery")


def measure(program: str, launches: str, preload: str) -> list[float]:
    """Nanoseconds of each of CALLS, in one process."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run([program, launches], env=environment, stdout=subprocess.PIPE, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    program, runs, launches = os.path.abspath(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    folder = os.path.abspath(sys.argv[4])
    tms, reach = os.path.join(folder, "libtms.so"), os.path.join(folder, "libtms_reach.so")
    ways = {"no preload": "", "libtms.so": tms, "libtms.so and libtms_reach.so": f"{tms} {reach}"}
    names = list(ways)
    measured: dict[str, list[list[float]]] = {name: [] for name in names}
    for run in range(runs):
        # in turn, and the first one changing, so that drift hits all alike
        for i in range(len(names)):
            name = names[(run + i) % len(names)]
            measured[name].append(measure(program, launches, ways[name]))
    result: dict[str, dict[str, dict[str, float]]] = {}
    for at, call in enumerate(CALLS):
        result[call] = {}
        plain = statistics.median(run[at] for run in measured[names[0]])
        print(f"{call}, ns a call, median of {runs}")
        for name in names:
            low, ns, high = statistics.quantiles([run[at] for run in measured[name]], n=4)
            print(
                f"  {name:<30}{ns:>10.2f}  {ns - plain:>+8.2f}  x{ns / plain:.3f}"
                f"  quartiles {low:.2f} to {high:.2f}"
            )
            result[call][name] = {
                "ns": round(ns, 2),
                "added_ns": round(ns - plain, 2),
                "ratio": round(ns / plain, 4),
                "q1": round(low, 2),
                "q3": round(high, 2),
            }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
