"""The pools on recorded traces, and among many live blocks.

    scripts/bench.sh pools [TRACE...]

Replays each trace (docs/traces by default) with tms replay, several times, and where torch and a
GPU are there on PyTorch's own allocator in the same run. Draws docs/pools.svg: what a pair of free
and malloc costs with 10^3 to 10^6 blocks live, beside the floor, a structure that only touches the
memory that a pool must touch (scripts/bench/pairs). Prints tables and, last, JSON.
"""

from __future__ import annotations

import glob
import json
import math
import os
import subprocess
import sys
from typing import Any

from chart import DASHED, Chart

ROUNDS = 5  # the fastest counts: what else the machine does only ever adds
TMS = os.path.join("build", "bin", "tms")
PAIRS = os.path.join("build", "bench", "pairs")
GOALS = {"caching": 200.0, "bfc": 200.0}  # nanoseconds for a pair of malloc and free
NATIVE = 1.5  # times PyTorch's
METADATA = 0.01  # of what is managed
PLOT = os.path.join("docs", "pools.svg")


def objects(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def replay(trace: str) -> list[dict[str, Any]]:
    """A result for each kind of pool."""
    runs = [objects(TMS, "replay", "--pool", "all", "--json", trace) for _ in range(ROUNDS)]
    results = runs[0]
    for i, result in enumerate(results):
        for key in ("ns_per_op", "ns_per_op_again"):
            result[key] = min(run[i][key] for run in runs)
    return results


def native(trace: str) -> dict[str, Any] | None:
    """PyTorch's allocator on the same trace; None without torch or a GPU."""
    here = os.path.dirname(os.path.abspath(__file__))
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", probe], stderr=subprocess.DEVNULL).returncode:
        return None
    command = [sys.executable, os.path.join(here, "native.py"), trace]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def verdict(good: bool) -> str:
    return "met" if good else "MISSED"


def report(trace: str, results: list[dict[str, Any]], torch: dict[str, Any] | None) -> None:
    titles = [
        "first ns",
        "again ns",
        "x native",
        "reserved/live",
        "internal",
        "external",
        "metadata",
    ]
    operations = results[0]["operations"]
    print(f"{trace}: {operations} operations; ns for a pair of malloc and free")
    print(f"{'':<10}" + "".join(f"{title:>14}" for title in titles))
    goals = []
    for r in results:
        first, again = 2 * r["ns_per_op"], 2 * r["ns_per_op_again"]
        times = again / (2 * torch["ns_per_op"]) if torch else None
        metadata = r["metadata_bytes"] / max(r["peak_live_bytes"], 1)
        cells = [
            f"{first:.0f}",
            f"{again:.0f}",
            f"{times:.2f}" if times else "",
            f"{r['reserved_per_live']:.3f}",
            f"{r['internal_fragmentation']:.1%}",
            f"{r['external_fragmentation']:.1%}",
            f"{metadata:.4%}",
        ]
        print(f"{r['kind']:<10}" + "".join(f"{cell:>14}" for cell in cells))
        if goal := GOALS.get(r["kind"]):
            goals.append(f"{r['kind']}: {first:.0f} of {goal:.0f} ns {verdict(first <= goal)}")
            if times:
                goals.append(f"{r['kind']}: x{times:.2f} of x{NATIVE} {verdict(times <= NATIVE)}")
        if metadata > METADATA:
            goals.append(f"{r['kind']}: metadata {metadata:.2%} of {METADATA:.0%} MISSED")
    if torch:
        reserved = torch["peak_reserved_bytes"] / max(torch["peak_live_bytes"], 1)
        pair = 2 * torch["ns_per_op"]
        print(f"{'native':<10}{'':>14}{pair:>14.0f}{'':>14}{reserved:>14.3f}   ({torch['how']})")
    else:
        goals.append("PyTorch's own allocator: no torch with a GPU here")
    print("goals: " + "; ".join(goals) + "\n")


FLOOR = "floor"
PATTERNS = {  # whether a pair's block is one of 256, and the size the same again
    (False, False): "any of the blocks",
    (True, False): "256 blocks, new sizes",
    (True, True): "256 blocks, same sizes",
}
Curves = dict[str, dict[int, float]]  # by pool: by the number of live blocks, ns for a pair


def curves(points: list[dict[str, Any]], pattern: tuple[bool, bool]) -> Curves:
    """The points of a pattern; the floor, where it was measured, comes last."""
    found: Curves = {}
    for p in points:
        if (p["among"] == 256, p["same_sizes"]) == pattern:
            found.setdefault(p["pool"], {})[p["live"]] = p["ns_per_pair"]
    return found


def flatness(points: list[dict[str, Any]]) -> None:
    for pattern, title in PATTERNS.items():
        found = curves(points, pattern)
        counts = sorted(next(iter(found.values())))
        first, last = counts[0], counts[-1]
        print(f"ns for a pair of free and malloc of {title}, by number of live blocks")
        heads = [f"{count:,}" for count in counts] + ["last/first", "last-first"]
        heads += ["of the floor's"] if FLOOR in found else []
        print(f"{'':<10}" + "".join(f"{head:>15}" for head in heads))
        for kind, costs in found.items():
            cells = [f"{costs[count]:.0f}" for count in counts]
            cells += [f"x{costs[last] / costs[first]:.2f}", f"{costs[last] - costs[first]:+.0f}"]
            if FLOOR in found:
                under = found[FLOOR]
                grown = (costs[last] - costs[first]) / (under[last] - under[first])
                cells.append(f"x{grown:.2f}")
            print(f"{kind:<10}" + "".join(f"{cell:>15}" for cell in cells))
        print()


COLOURS = ["#8a92a0", "#e0a126", "#d65a4a", "#8f6ad8", "#2f78e0", "#1f9d8f", "#6aa83c"]


def plot(points: list[dict[str, Any]]) -> str:
    """A chart for each pattern, side by side, with the same scale."""
    width, height, left, top, gap = 250, 260, 56, 50, 56
    highest = max(p["ns_per_pair"] for p in points)
    step = next(s for s in (20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if highest / s <= 6)
    ceiling = step * math.ceil(highest / step)
    counts = sorted({p["live"] for p in points})
    spread = math.log10(counts[-1] / counts[0])
    total, bottom = left + 3 * width + 2 * gap + 96, top + height
    chart = Chart(total, bottom + 52)
    strokes = {kind: f'stroke="{colour}"' for kind, colour in zip(kinds(points), COLOURS)}
    strokes[FLOOR] = f'class="floor" {DASHED}'
    for panel, (pattern, title) in enumerate(PATTERNS.items()):
        x0 = left + panel * (width + gap)
        chart.text(x0, 28, title, "start", False)
        for tick in range(0, ceiling + 1, step):
            y = bottom - height * tick / ceiling
            chart.rule(x0, y, width)
            chart.text(x0 - 8, y + 4, f"{tick}", "end")
        for count in counts:
            at = x0 + width * math.log10(count / counts[0]) / spread
            anchor = {counts[0]: "start", counts[-1]: "end"}.get(count, "middle")
            chart.text(at, bottom + 20, f"{count // 1000:,}k", anchor)
        chart.text(x0 + width / 2, bottom + 40, "live blocks")
        for kind, costs in curves(points, pattern).items():
            line = (
                (
                    x0 + width * math.log10(count / counts[0]) / spread,
                    bottom - height * cost / ceiling,
                )
                for count, cost in costs.items()
            )
            chart.curve(line, f'{strokes[kind]} stroke-width="2"')
    chart.text(left - 40, 28, "ns", "start")
    for row, kind in enumerate(strokes):
        x, y = left + 3 * width + 2 * gap + 18, top + 12 + 22 * row
        chart.key(x, y, 16, strokes[kind])
        chart.text(x + 22, y + 4, kind, "start", False)
    return str(chart)


def kinds(points: list[dict[str, Any]]) -> list[str]:
    return [kind for kind in dict.fromkeys(p["pool"] for p in points) if kind != FLOOR]


def main() -> None:
    folder = os.path.join("docs", "traces")
    traces = sys.argv[1:] or sorted(glob.glob(os.path.join(folder, "*.csv.gz")))
    if not traces:
        sys.exit(f"pools: no traces in {folder}; give some, or see {folder}/README.md")
    table: dict[str, Any] = {"traces": {}}
    for trace in traces:
        results, torch = replay(trace), native(trace)
        report(trace, results, torch)
        table["traces"][trace] = {"pools": results, "native": torch}
    table["live"] = objects(PAIRS)
    flatness(table["live"])
    with open(PLOT, "w") as file:
        file.write(plot(table["live"]))
    print(json.dumps(table))


if __name__ == "__main__":
    main()
