"""The pools on recorded traces, and among many live blocks.

    scripts/bench.sh pools [TRACE...]

Replays each trace (docs/traces by default) with tms replay, several times, and where torch and a
GPU are there on PyTorch's own allocator in the same run. Draws docs/pools.svg: what a pair of free
and malloc costs with 10^3 to 10^6 blocks live. Prints tables and, last, JSON.
"""

from __future__ import annotations

import glob
import json
import math
import os
import subprocess
import sys
from typing import Any

ROUNDS = 5  # the fastest counts: what else the machine does only ever adds
TMS = os.path.join("build", "bin", "tms")
GOALS = {"caching": 200.0, "bfc": 200.0}  # nanoseconds for a pair of malloc and free
NATIVE = 1.5  # times PyTorch's
METADATA = 0.01  # of what is managed
PLOT = os.path.join("docs", "pools.svg")


def objects(*arguments: str) -> list[dict[str, Any]]:
    done = subprocess.run([TMS, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def replay(trace: str) -> list[dict[str, Any]]:
    """A result for each kind of pool."""
    runs = [objects("replay", "--pool", "all", "--json", trace) for _ in range(ROUNDS)]
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


def flatness(points: list[dict[str, Any]]) -> None:
    print("ns for a pair of free and malloc with so many blocks live, of any / of the same 256")
    counts = sorted({p["live"] for p in points})
    print(f"{'':<10}" + "".join(f"{count:>14,}" for count in counts) + f"{'last/first':>14}")
    for kind in dict.fromkeys(p["pool"] for p in points):
        rows = [
            [p["ns_per_pair"] for p in points if p["pool"] == kind and (p["among"] == 256) == few]
            for few in (False, True)
        ]
        cells = [f"{a:.0f} / {b:.0f}" for a, b in zip(*rows)]
        cells.append(" / ".join(f"x{row[-1] / row[0]:.2f}" for row in rows))
        print(f"{kind:<10}" + "".join(f"{cell:>14}" for cell in cells))
    print()


COLOURS = ["#8a92a0", "#e0a126", "#d65a4a", "#8f6ad8", "#2f78e0", "#1f9d8f", "#6aa83c"]
STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1d2129; }
.soft { fill: #667080; }
.page { fill: #ffffff; }
.line { stroke: #e1e4ea; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e8ec; }
  .soft { fill: #97a0ae; }
  .page { fill: #1c1f25; }
  .line { stroke: #343a44; }
}
"""


def plot(points: list[dict[str, Any]]) -> str:
    """Two charts side by side, with the same scale."""
    width, height, left, top, gap = 330, 260, 56, 50, 64
    kinds = list(dict.fromkeys(p["pool"] for p in points))
    highest = max(p["ns_per_pair"] for p in points)
    step = next(s for s in (20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if highest / s <= 6)
    ceiling = step * math.ceil(highest / step)
    counts = sorted({p["live"] for p in points})
    spread = math.log10(counts[-1] / counts[0])
    total, bottom = left + 2 * width + gap + 96, top + height
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {bottom + 52}">',
        f"<style>{STYLE}</style>",
        f'<rect class="page" width="{total}" height="{bottom + 52}" rx="10"/>',
    ]

    def text(x: float, y: float, words: str, anchor: str = "middle", soft: bool = True) -> None:
        name = ' class="soft"' if soft else ""
        out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{name}>{words}</text>')

    titles = {False: "pairs of any of the blocks", True: "pairs of the same 256 blocks"}
    for chart, (few, title) in enumerate(titles.items()):
        x0 = left + chart * (width + gap)
        text(x0, 28, title, "start", False)
        for tick in range(0, ceiling + 1, step):
            y = bottom - height * tick / ceiling
            out.append(f'<path class="line" d="M{x0} {y:.1f}h{width}"/>')
            text(x0 - 8, y + 4, f"{tick}", "end")
        for count in counts:
            at = x0 + width * math.log10(count / counts[0]) / spread
            text(at, bottom + 20, f"{count:,}")
        text(x0 + width / 2, bottom + 40, "live blocks")
        for kind, colour in zip(kinds, COLOURS):
            places = [
                (
                    x0 + width * math.log10(p["live"] / counts[0]) / spread,
                    bottom - height * p["ns_per_pair"] / ceiling,
                )
                for p in points
                if p["pool"] == kind and (p["among"] == 256) == few
            ]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            out.append(
                f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
            )
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    text(left - 40, 28, "ns", "start")
    for row, (kind, colour) in enumerate(zip(kinds, COLOURS)):
        x, y = left + 2 * width + gap + 18, top + 12 + 22 * row
        out.append(f'<path d="M{x} {y}h16" stroke="{colour}" stroke-width="3"/>')
        text(x + 22, y + 4, kind, "start", False)
    return "\n".join([*out, "</svg>"]) + "\n"


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
    table["live"] = objects("bench-pools")
    flatness(table["live"])
    with open(PLOT, "w") as file:
        file.write(plot(table["live"]))
    print(json.dumps(table))


if __name__ == "__main__":
    main()
