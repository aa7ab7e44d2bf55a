"""What a layout of memory costs: many segments against one, small allocations, threads.

    scripts/bench.sh layout [PEER]

PEER is a folder that holds the unpacked wheel of torch_memory_saver. Every number is a median of
five, from processes that take turns; a pause or resume counts from the second cycle on, after half
a second in between, in which the driver scrubs what it was given back. "Scrub" is the same amount
in a single segment. --plot=FILE only draws curves, against bytes and against segments.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys

from chart import DASHED, Chart

MiB = 1 << 20
GiB = 1 << 30
CYCLES = 6
PEER_LIBRARY = "torch_memory_saver_hook_mode_preload_cu13.abi3.so"


def compiled() -> str:
    """The path of layout.c's program, linked to PyTorch's libcudart or the toolkit's."""
    out = os.path.join("build", "bench")
    os.makedirs(out, exist_ok=True)
    code = "import torch; torch.cuda.init(); print(*{l.split()[-1] for l in open('/proc/self/maps')"
    code += " if 'libcudart.so' in l})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    cudart = os.path.realpath(found.stdout.strip() or "/usr/local/cuda/lib64/libcudart.so")
    program = os.path.join(out, "layout")
    subprocess.run(
        [os.environ.get("CC", "gcc"), "-O2", "-Wall", "-Wextra", "-o", program]
        + ["scripts/bench/layout.c", cudart, "-Wl,-rpath," + os.path.dirname(cudart)]
        + ["-ldl", "-lpthread", "-lm"],
        check=True,
    )
    return program


class Bench:
    def __init__(self, program: str, peer: str | None) -> None:
        self.program = program
        self.libraries = {"ours": os.path.abspath("build/lib/libtms.so")}
        if peer:
            self.libraries["peer"] = os.path.join(os.path.abspath(peer), PEER_LIBRARY)

    def run(self, who: str, *arguments: object) -> list[list[float]]:
        environment = dict(os.environ)
        if who != "none":
            environment["LD_PRELOAD"] = self.libraries[who]
        done = subprocess.run(
            [self.program, *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [[float(word) for word in line.split()] for line in done.stdout.splitlines()]

    def cycle(self, who: str, count: int, size: int) -> tuple[float, float]:
        """Milliseconds of a pause and a resume."""
        rows = self.run(who, "cycles", count, size, CYCLES)[1:]
        return statistics.median(r[0] for r in rows), statistics.median(r[1] for r in rows)


def cycles(bench: Bench) -> dict[str, dict[str, tuple[float, float]]]:
    table: dict[str, dict[str, tuple[float, float]]] = {}
    for name, total, size, pause_goal, resume_goal in (
        ("60 GiB in 3072 x 20 MiB", 60 * GiB, 20 * MiB, 45, 15),
        ("16 GiB in 8192 x 2 MiB", 16 * GiB, 2 * MiB, 20, 15),
    ):
        rows = {"scrub": bench.cycle("ours", 1, total)}
        for who in bench.libraries:
            rows[who] = bench.cycle(who, total // size, size)
        table[name] = rows
        scrub = rows["scrub"]
        print(f"{name}: milliseconds, pause and resume")
        print(f"  one segment (the driver's scrub)   {scrub[0]:8.1f} {scrub[1]:8.1f}")
        for who in bench.libraries:
            own = rows[who]
            over = [own[i] - scrub[i] for i in range(2)]
            goals = f" (goals {pause_goal}, {resume_goal})" if who == "ours" else ""
            print(
                f"  {who:<34} {own[0]:8.1f} {own[1]:8.1f}   beyond the scrub {over[0]:.1f} and "
                f"{over[1]:.1f}{goals}"
            )
    return table


def mallocs(bench: Bench) -> dict[str, list[float]]:
    table = {}
    print("cudaMalloc, cudaFree in microseconds, MiB held in between")
    for name, count, size in (
        ("2 MiB", 500, 2 * MiB),
        ("20 MiB", 500, 20 * MiB),
        ("4 KiB", 10000, 4096),
    ):
        rounds = []
        for _ in range(5):
            rounds.append((bench.run("none", "malloc", count, size, 0)[0], "real"))
            for who in bench.libraries:
                rounds.append((bench.run(who, "malloc", count, size, 1)[0], who))
        for who in ("real", *bench.libraries):
            own = [row for row, of in rounds if of == who]
            table[f"{name} {who}"] = [statistics.median(r[i] for r in own) for i in range(3)]
        real = table[f"{name} real"]
        for who in ("real", *bench.libraries):
            own = table[f"{name} {who}"]
            ratio = own[0] / real[0]
            print(
                f"  {count} x {name:<7} {who:<5} {own[0]:9.2f} {own[1]:9.2f} {own[2]:9.1f}   "
                f"x{ratio:.2f}"
            )
    return table


def throughput(bench: Bench) -> dict[str, float]:
    table = {}
    print("32 threads, pairs of cudaMalloc and cudaFree per second in all")
    kinds = (("real", "none", 0), ("outside", "ours", 0), ("region", "ours", 1))
    for name, size in (("4 KiB", 4096), ("2 MiB", 2 * MiB)):
        rates: dict[str, list[float]] = {kind: [] for kind, _, _ in kinds}
        for _ in range(5):
            for kind, who, in_region in kinds:
                rates[kind].append(bench.run(who, "threads", 32, size, in_region, 1)[0][0])
        for kind, _, _ in kinds:
            rate = table[f"{name} {kind}"] = statistics.median(rates[kind])
            ratio = rate / table[f"{name} real"]
            print(f"  {name} {kind:<10} {rate:10.0f}   x{ratio:.2f}")
    return table


def pausing(bench: Bench) -> dict[str, list[float]]:
    """What a pause and resume wait for, and who waits for them.

    The driver's part is that beside threads outside regions; the part of the processors, of which
    there may be fewer than threads, that beside threads which only count.
    """
    table = {}
    print("A pause of 2 GiB in 1024 segments beside threads of 4 KiB pairs: milliseconds")
    print("                         pause    resume   slowest call of the threads during these")
    kinds = (("counting", 0, 0), ("outside", 4096, 0), ("region", 4096, 1))
    for threads in (8, 32):
        for name, size, in_region in kinds:
            rows = []
            for _ in range(3):
                rows += bench.run("ours", "pausing", threads, size, in_region, 8)[1:]
            key = f"{threads} {name}"
            table[key] = [statistics.median(row[i] for row in rows) for i in range(3)]
            print(f"  {key:<18}" + "".join(f"{value:10.2f}" for value in table[key]))
    return table


def plotted(bench: Bench) -> dict[str, dict[str, list[tuple[float, float, float]]]]:
    """(x, pause, resume) by curve: against GiB in segments of 20 MiB, against segments of 2 MiB."""
    curves: dict[str, dict[str, list[tuple[float, float, float]]]] = {"GiB": {}, "segments": {}}
    for who in bench.libraries:
        curves["GiB"][who] = [
            (gib, *bench.cycle(who, gib * GiB // (20 * MiB), 20 * MiB)) for gib in (4, 16, 32, 64)
        ]
        curves["segments"][who] = [
            (count, *bench.cycle(who, count, 2 * MiB)) for count in (256, 1024, 4096, 8192, 16384)
        ]
    return curves


LINES = {  # with their colours
    "ours": ("tms", "#2f78e0"),
    "peer": ("torch_memory_saver", "#e0a126"),
}


def svg(curves: dict[str, dict[str, list[tuple[float, float, float]]]]) -> str:
    """Two panels, pause and resume milliseconds against bytes and against segments."""
    width, height, left, top, gap = 340, 240, 56, 46, 64
    bottom = top + height
    total = left + 2 * width + gap + 36
    title = "Milliseconds of a pause and a resume, for tms and torch_memory_saver"
    chart = Chart(total, bottom + 98, title, "text { font-size: 14px; }")
    titles = {"GiB": "GiB, in segments of 20 MiB", "segments": "segments of 2 MiB"}
    for panel, (unit, own) in enumerate(curves.items()):
        x0 = left + panel * (width + gap)
        most_x = max(x for points in own.values() for x, _, _ in points)
        most_y = max(max(p, r) for points in own.values() for _, p, r in points)
        step = next(s for s in (10, 20, 50, 100, 200, 500, 1000, 10**6) if most_y / s <= 6)
        ceiling = step * math.ceil(most_y / step)
        for tick in range(0, ceiling + 1, step):
            y = bottom - height * tick / ceiling
            chart.rule(x0, y, width)
            chart.text(x0 - 8, y + 5, f"{tick}", "end")
        for quarter in range(5):
            chart.text(x0 + width * quarter / 4, bottom + 22, f"{most_x * quarter / 4:,.0f}")
        chart.text(x0 + width / 2, bottom + 44, titles[unit], soft=False)
        for who, points in own.items():
            for column, dash in ((1, ""), (2, DASHED)):
                path = (
                    (x0 + width * point[0] / most_x, bottom - height * point[column] / ceiling)
                    for point in points
                )
                chart.curve(path, f'stroke="{LINES[who][1]}" stroke-width="2.5" {dash}')
    chart.text(left - 40, 26, "milliseconds", "start")
    x, y = left - 40, bottom + 76
    for who in curves["GiB"]:
        name, colour = LINES[who]
        for what, dash in (("pause", ""), ("resume", DASHED)):
            chart.key(x, y - 5, 26, f'stroke="{colour}" {dash}')
            chart.text(x + 34, y, f"{name}: {what}", "start", False)
            x += 54 + 8 * len(f"{name}: {what}")
    return str(chart)


def main() -> None:
    arguments = [a for a in sys.argv[1:] if not a.startswith("--")]
    bench = Bench(compiled(), arguments[0] if arguments else None)
    result: dict[str, object] = {}
    plots = [a.partition("=")[2] for a in sys.argv[1:] if a.startswith("--plot=")]
    if plots:
        result["curves"] = curves = plotted(bench)
        with open(plots[0], "w") as file:
            file.write(svg(curves))
    else:
        result["cycles"], result["mallocs"] = cycles(bench), mallocs(bench)
        result["threads"], result["pausing"] = throughput(bench), pausing(bench)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
