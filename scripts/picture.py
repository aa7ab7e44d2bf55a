#!/usr/bin/env python3
"""Draws docs/memory.svg: which process held a device's memory in docs/examples/rollout.py.

    scripts/picture.py [FILE]

The run is real, over the simulator, with docs/examples/simulated.py for PyTorch: 256 MiB of memory
that two processes share. What is drawn is what each process's tms.stats() said, every 5 ms and
at each pause and resume.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MEMORY = 256 << 20
TAGS = {  # from below, with their colours
    "weights": "#1b5e9e",
    "optimizer": "#4f93cf",
    "gradients": "#a9cdec",
    "rollout weights": "#b45f06",
    "kv cache": "#f2b266",
}
PROCESSES = {
    "trainer": ("weights", "optimizer", "gradients"),
    "server": ("rollout weights", "kv cache"),
}
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 720, 320, 84, 20, 106
STYLE = (ROOT / "scripts" / "bench" / "style.css").read_text()


def run() -> list[tuple[float, dict[str, int]]]:
    """Seconds since the first sample, and the bytes that each tag held, at every change."""
    with tempfile.TemporaryDirectory() as folder:
        paths = (ROOT / "scripts" / "picture", ROOT / "pymodule")
        subprocess.run(
            [sys.executable, ROOT / "docs" / "examples" / "rollout.py"],
            env={
                **os.environ,
                "PYTHONPATH": ":".join(map(str, paths)),
                "LD_PRELOAD": str(ROOT / "build" / "lib" / "libtms.so"),
                "LD_LIBRARY_PATH": str(ROOT / "build" / "sim"),
                "CUDASIM_DEVICES": "1",
                "CUDASIM_MEMORY": str(MEMORY),
                "CUDASIM_SHARED": f"picture{os.getpid()}",
                "PICTURE": f"{folder}/process",
            },
            check=True,
        )
        samples = sorted(
            (seconds, process, held)
            for process, file in enumerate(Path(folder).iterdir())
            for seconds, held in map(json.loads, file.read_text().splitlines())
        )
    held: dict[int, dict[str, int]] = {}
    changes: list[tuple[float, dict[str, int]]] = []
    for seconds, process, now in samples:
        held[process] = now
        every = {tag: size for one in held.values() for tag, size in one.items()}
        assert sum(every.values()) <= MEMORY, every
        if not changes or every != changes[-1][1]:
            changes.append((seconds - samples[0][0], every))
    changes.append((samples[-1][0] - samples[0][0], {}))
    return changes


def draw(changes: list[tuple[float, dict[str, int]]]) -> str:
    """An SVG of stacked areas."""
    bottom, right = HEIGHT - BOTTOM, WIDTH - 12
    begin = next(seconds for seconds, held in changes if any(held.values()))
    end = changes[-1][0]

    def x(seconds: float) -> float:
        return LEFT + (right - LEFT) * (seconds - begin) / (end - begin)

    def y(size: float) -> float:
        return bottom - (bottom - TOP) * size / MEMORY

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">',
        "<title>A trainer and a rollout server take turns on a simulated device</title>",
        f"<style>{STYLE}text {{ font-size: 16px; }}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="10"/>',
    ]
    for number, (tag, colour) in enumerate(TAGS.items()):
        path = []
        for (since, held), (until, _) in zip(changes, changes[1:]):
            if since < begin or not held.get(tag):
                continue
            below = sum(held.get(other, 0) for other in list(TAGS)[:number])
            top = y(below + held[tag])
            path.append(f"M{x(since):.1f} {y(below):.1f}V{top:.1f}H{x(until):.1f}V{y(below):.1f}z")
        out.append(f'<path d="{"".join(path)}" fill="{colour}"><title>{tag}</title></path>')
    for row, (process, tags) in enumerate(PROCESSES.items()):
        line = HEIGHT - 48 + 28 * row
        out.append(f'<text x="{LEFT}" y="{line}">{process}:</text>')
        for column, tag in enumerate(tags):
            left = LEFT + 90 + 160 * column
            box = f'<rect x="{left}" y="{line - 13}" width="15" height="15" fill="{TAGS[tag]}"/>'
            out.append(f'{box}<text x="{left + 22}" y="{line}">{tag}</text>')
    for size in (0, MEMORY // 2, MEMORY):
        out.append(f'<path class="line" d="M{LEFT} {y(size):.1f}H{right}"/>')
        out.append(
            f'<text class="soft" x="{LEFT - 8}" y="{y(size) + 5:.1f}" text-anchor="end">'
            f"{size >> 20} MiB</text>"
        )
    steps = ((1, 2, 5)[n % 3] * 10.0 ** (n // 3 - 1) for n in itertools.count())  # from 0.1 s
    step = next(step for step in steps if (end - begin) / step <= 10)
    for tick in range(int((end - begin) / step) + 1):
        out.append(
            f'<text class="soft" x="{x(begin + tick * step):.1f}" y="{bottom + 24}" '
            f'text-anchor="middle">{tick * step:g} s</text>'
        )
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__.strip())
    else:
        picture = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "memory.svg"
        picture.write_text(draw(run()))
