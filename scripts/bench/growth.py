"""What each step costs as there is more of it, from segments to ranks. Needs no GPU.

    scripts/bench.sh growth [--plot=FILE] [--quick] [STEP...]

STEP is one of segments, contents, tags, processes, sets, share, ranks; without any it is all of
them. It works over the simulator, whose own part counts: a simulated driver call takes about a
microsecond. Each figure is the shortest of some runs, because other work of the machine only
adds; of segments and contents it is processor time. A row has the seconds at the least and the
most, their ratio over that of the numbers, and the exponent of the curve that fits all figures.
n log n has exponents of 1.1 to 1.2 here; a step above 1.4 is marked, and the script fails.
--plot=FILE draws a chart for each step. --quick takes small numbers, and once. "share" needs Go,
"ranks" PyTorch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from chart import Chart

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"
TMS = str(BUILD / "bin" / "tms")
STEEPEST = 1.4
Curves = dict[str, dict[int, float]]  # seconds, by step and number


class Bench:
    def __init__(self, folder: str, quick: bool) -> None:
        self.folder, self.quick = folder, quick
        self.runs = 1 if quick else 3
        self.program = BUILD / "bench" / "growth"
        self.program.parent.mkdir(exist_ok=True)
        source = Path(__file__).with_suffix(".c")
        libraries = [BUILD / "sim" / "libcudart.so.13", BUILD / "lib" / "libtms.so"]
        compiler = os.environ.get("CC", "gcc")
        command = [compiler, "-O2", "-Wall", "-Wextra", "-o", self.program, source]
        subprocess.run([*command, "-Wl,--no-as-needed", *libraries], check=True)

    def environment(self, **more: str) -> dict[str, str]:
        others = ("TMS_", "CUDASIM_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(others)}
        own = {"LD_LIBRARY_PATH": str(BUILD / "sim"), "XDG_RUNTIME_DIR": self.folder}
        return {**inherited, **own, "CUDASIM_MEMORY": "16T", **more}

    def host(self, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        environment["LD_PRELOAD"] = str(BUILD / "lib" / "libtms.so")
        return subprocess.Popen(
            [self.program, *map(str, arguments)],
            env=self.environment(**environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tms(self, *arguments: object, **environment: str) -> float:
        """Seconds of a command."""
        begun = time.perf_counter()
        done = subprocess.run(
            [TMS, *map(str, arguments)],
            env=self.environment(**environment),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise SystemExit(f"tms {' '.join(map(str, arguments))[:80]}: {done.stderr}")
        return time.perf_counter() - begun

    def least(self, *arguments: object, **environment: str) -> float:
        return min(self.tms(*arguments, **environment) for _ in range(self.runs))


def lines(host: subprocess.Popen[str]) -> dict[str, float]:
    """The steps that a host has measured, until it ends or waits."""
    assert host.stdout
    steps = {}
    for line in host.stdout:
        step, _, seconds = line.rpartition(" ")
        if step == "ready":
            return steps
        steps[step] = float(seconds)
    if host.wait():
        raise SystemExit(host.returncode)
    return steps


@contextlib.contextmanager
def waiting(hosts: list[subprocess.Popen[str]]) -> Iterator[list[dict[str, float]]]:
    try:
        yield [lines(host) for host in hosts]
    finally:
        for host in hosts:
            assert host.stdin
            host.stdin.close()
        for host in hosts:
            host.wait()


def keep(curves: Curves, step: str, number: int, seconds: float) -> None:
    own = curves.setdefault(step, {})
    own[number] = min(seconds, own.get(number, seconds))


def segments(bench: Bench) -> Curves:
    return of_host(bench, "2 MiB, no contents", 2 << 20, 0)


def contents(bench: Bench) -> Curves:
    return of_host(bench, "4 KiB with contents", 4096, 1)


def of_host(bench: Bench, what: str, size: int, kept: int) -> Curves:
    curves: Curves = {}
    for number in (1000, 10000) if bench.quick else (1000, 10000, 100000, 300000):
        for _ in range(1 if number > 100000 else bench.runs):
            host = bench.host("segments", number, size, kept)
            for step, seconds in lines(host).items():
                keep(curves, f"{step}: {what}", number, seconds)
    return curves


def tags(bench: Bench) -> Curves:
    curves: Curves = {}
    for number in (100, 1000) if bench.quick else (100, 1000, 10000):
        with waiting([bench.host("tags", number, TMS_CONTROL="1")]):
            keep(curves, "tms ps: tags of a process", number, bench.least("ps", "--json"))
            for _ in range(bench.runs):
                seconds = bench.tms("pause", "--all", "--force", "--discard")
                keep(curves, "tms pause: tags of a process", number, seconds)
                keep(curves, "tms resume: tags of a process", number, bench.tms("resume", "--all"))
    return curves


def processes(bench: Bench) -> Curves:
    """As ranks of a job have it, too: a pause of all is a transaction of all.

    A process has 55 threads, nearly all asleep, so 300 take half of the numbers that Linux has.
    """
    curves: Curves = {}
    for number in (5, 20) if bench.quick else (10, 30, 100, 300):
        with waiting([bench.host("tags", 1, TMS_CONTROL="1") for _ in range(number)]):
            keep(curves, "tms ps: processes", number, bench.least("ps"))
            for _ in range(bench.runs):
                seconds = bench.tms("pause", "--all", "--force", "--discard")
                keep(curves, "tms pause: processes", number, seconds)
                keep(curves, "tms resume: processes", number, bench.tms("resume", "--all"))
    return curves


def sets(bench: Bench) -> Curves:
    curves: Curves = {}
    for number in (10, 100) if bench.quick else (10, 100, 1000):
        for _ in range(1 if number > 100 else bench.runs):
            device = {"CUDASIM_SHARED": f"growth{os.getpid()}", "CUDASIM_MEMORY": "64G"}
            with waiting([bench.host("sets", number, **device)]) as (steps,):
                for step, seconds in steps.items():
                    keep(curves, f"{step}: sets", number, seconds)
                keep(curves, "tms kept: sets", number, bench.tms("kept", "--json"))
            names = (f"set {i}" for i in range(number))
            keep(curves, "tms kept drop: sets", number, bench.tms("kept", "drop", *names, **device))
    return curves


def share(bench: Bench) -> Curves:
    """A process decides who makes room for it."""
    numbers = (10, 100, 1000) if bench.quick else (10, 100, 1000, 10000)
    done = subprocess.run(
        ["go", "run", "./scripts/bench/growth", *map(str, numbers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    curves: Curves = {}
    for line in done.stdout.splitlines():
        step, number, seconds = line.rsplit(" ", 2)
        keep(curves, f"tms share: processes that {step}", int(number), float(seconds))
    return curves


def ranks(bench: Bench) -> Curves:
    if not importlib.util.find_spec("torch"):
        print("ranks: not measured, because this Python has no PyTorch", file=sys.stderr)
        return {}
    numbers = [8, 64] if bench.quick else [8, 64, 512]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("distributed.py"), "--rounds", "20", "--ranks"]
        + [str(number) for number in numbers],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    curves: Curves = {}
    for row in (line.split() for line in done.stdout.splitlines()):
        if row and row[0].isdigit() and int(row[0]) in numbers:
            keep(curves, "tms.distributed: ranks", int(row[0]), float(row[3]) / 1000)
    return curves


STEPS = {
    "segments": segments,
    "contents": contents,
    "tags": tags,
    "processes": processes,
    "sets": sets,
    "share": share,
    "ranks": ranks,
}


def exponent(curve: dict[int, float]) -> float:
    """The slope of the line through the logarithms, where the step is more than its start."""
    points = [(math.log(number), math.log(seconds)) for number, seconds in sorted(curve.items())]
    points = points[-3:]  # the least have what is paid once
    x, y = (sum(p[i] for p in points) / len(points) for i in (0, 1))
    return sum((p[0] - x) * (p[1] - y) for p in points) / sum((p[0] - x) ** 2 for p in points)


def table(curves: Curves) -> list[str]:
    """Prints rows of it, and returns what is steeper than n log n."""
    steep = []
    for step, curve in curves.items():
        (n, least), *_, (m, most) = sorted(curve.items())
        slope = exponent(curve)
        ratio = most / least / (m / n)
        mark = "**steep:** " if slope > STEEPEST else ""
        cells = f"{n:,}: {written(least)} | {m:,}: {written(most)} | {ratio:.2f} | {slope:.2f}"
        print(f"| {mark}{step} | {cells} |", flush=True)
        if mark:
            steep.append(step)
    return steep


def written(seconds: float) -> str:
    unit, factor = next(unit for unit in UNITS if seconds >= unit[1])
    return f"{seconds / factor:.3g} {unit}"


UNITS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
COLUMNS, WIDTH, HEIGHT, ROOM, LEFT = 3, 250, 120, 72, 56


def svg(curves: Curves) -> str:
    """A chart for each step, with n log n from its least number, dashed; both axes logarithmic."""
    width = LEFT + COLUMNS * (WIDTH + LEFT)
    height = -(-len(curves) // COLUMNS) * (HEIGHT + ROOM) + 8
    chart = Chart(width, height, "Seconds of each step against how much there is of it")
    for i, (step, curve) in enumerate(curves.items()):
        at = LEFT + (i % COLUMNS) * (WIDTH + LEFT), 36 + (i // COLUMNS) * (HEIGHT + ROOM)
        draw(chart, step, sorted(curve.items()), *at)
    return str(chart)


def draw(chart: Chart, step: str, points: list[tuple[int, float]], left: int, top: int) -> None:
    n, seconds = points[0]
    rule = [(m, seconds * m * math.log(m) / (n * math.log(n))) for m, _ in points]
    low = math.floor(math.log10(min(s for _, s in points)))
    high = math.ceil(math.log10(max(s for _, s in points + rule)))
    bottom = top + HEIGHT
    chart.text(left, top - 12, step, "start", False)

    def x(number: float) -> float:
        return left + WIDTH * math.log(number / n) / math.log(points[-1][0] / n)

    def y(seconds: float) -> float:
        return bottom - HEIGHT * (math.log10(seconds) - low) / (high - low)

    for tick in range(low, high + 1):
        chart.rule(left, y(10.0**tick), WIDTH)
        unit, factor = next(u for u in UNITS if tick >= math.log10(u[1]))
        chart.text(left - 6, y(10.0**tick) + 4, f"{10.0**tick / factor:.0f} {unit}", "end")
    for number, _ in points:
        chart.text(x(number), bottom + 18, f"{number:,}")
    for line, colour, dash in ((rule, "#98a1ae", "5 4"), (points, "#2f78e0", "none")):
        stroke = f'stroke="{colour}" stroke-width="2.5" stroke-dasharray="{dash}"'
        chart.curve(((x(number), y(seconds)) for number, seconds in line), stroke)


def main() -> None:
    words = [word for word in sys.argv[1:] if not word.startswith("--")]
    plots = [word.partition("=")[2] for word in sys.argv[1:] if word.startswith("--plot=")]
    unknown = [word for word in words if word not in STEPS]
    if unknown:
        raise SystemExit(f"not a step: {', '.join(unknown)}; steps: {', '.join(STEPS)}")
    curves: Curves = {}
    steep = []
    print("| step | least | most | ratio of the times, over that of the numbers | exponent |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="growth") as folder:
        bench = Bench(folder, "--quick" in sys.argv)
        for word in words or STEPS:
            of_step = STEPS[word](bench)
            steep += table(of_step)
            curves.update(of_step)
    print(json.dumps(curves))
    if plots:
        Path(plots[0]).write_text(svg(curves))
    if steep:
        raise SystemExit(f"steeper than n log n: {'; '.join(steep)}")


if __name__ == "__main__":
    main()
