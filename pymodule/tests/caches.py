"""What a pause by pid saves of each kind of PyTorch's caches, on the simulator and on a GPU."""

from __future__ import annotations

from pathlib import Path

from reaching import PROGRAMS, started, steer, tms

MiB = 1 << 20
EXPANDABLE = "expandable_segments:True"

KINDS = {
    "default": 40,
    "pluggable": 40,
    "graph": 40 + 64 + 128,
    "pool": 40 + 64 + 128,
    "pool plugged": 40 + 64 + 128,
}
"""MiB of contents that the pause saves: pools of the program's own, and of graphs, keep theirs."""


def saves(kind: str, python: str, place: Path, settings: str = "", **variables: str) -> None:
    command = [python, PROGRAMS / "with_caches.py", kind, str(place)]
    environment = {"PYTORCH_CUDA_ALLOC_CONF": settings, **variables}
    with started(command, 0, options=[], seconds=180, environment=environment) as program:
        program.ready()
        steer(program, "pause", seconds=60)
        (listed,) = (one for one in tms("ps", seconds=60) if one["pid"] == program.pid)
        devices = listed["stats"]["devices"]
        saved = sum(tag["host_bytes"] for device in devices for tag in device["tags"]) // MiB
        steer(program, "resume", seconds=60)
        assert program.end() == (1, "right")
        assert KINDS[kind] <= saved <= KINDS[kind] + 24, saved
