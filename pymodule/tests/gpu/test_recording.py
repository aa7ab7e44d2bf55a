"""What PyTorch does, recorded and made a page of."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from device import output, torch_on_gpu
from simulator import BUILD

torch_on_gpu()

GiB = 1 << 30
PROGRAM = """
import json, sys
import torch, tms

torch.cuda.memory._record_memory_history(stacks="python")

def build():
    return torch.ones(1 << 30, dtype=torch.uint8, device="cuda")

with tms.region("weights", backup="host"):
    weights = build()
outside = torch.ones(1 << 20, device="cuda")
tms.pause("weights")
tms.resume("weights")
assert bool((weights == 1).all())
with open(sys.argv[1], "w") as file:
    json.dump(torch.cuda.memory._snapshot(), file, default=str)
"""


def report(*arguments: str) -> None:
    subprocess.run([str(BUILD / "bin" / "tms"), "report", *arguments], check=True)


def recorded(folder: Path, **variables: str) -> tuple[list[dict[str, Any]], str]:
    """The events of a Chrome trace, and the page, which has PyTorch's stacks."""
    trace, snapshot = str(folder / "it.trace"), str(folder / "snapshot.json")
    output(PROGRAM, snapshot, TMS_TRACE=trace, **variables)
    events, page = folder / "events.json", folder / "page.html"
    report(trace, "--format", "perfetto", "-o", str(events))
    report(trace, "--torch-snapshot", snapshot, "-o", str(page))
    return json.loads(events.read_text())["traceEvents"], page.read_text()


def check(events: list[dict[str, Any]], page: str) -> None:
    slices = {event["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert set(slices) == {"pause weights", "resume weights"}
    for name, told in slices.items():
        assert told["bytes"] >= GiB and told["copied"] >= GiB and told["code"] == 0, name
        assert told["waited"] + told["copying"] <= told["took"], name
        print(f"{name}: {told['gb_per_s']:.1f} GB/s, bounded by {told['bound']}", file=sys.stderr)
    counters = [e["args"] for e in events if e["ph"] == "C" and e["name"].startswith("weights")]
    assert max(figures["physical"] for figures in counters) >= GiB
    assert min(figures["physical"] for figures in counters[1:]) == 0
    assert max(figures["backup"] for figures in counters) >= GiB
    assert "build (" in page


def test_recording(tmp_path: Path) -> None:
    check(*recorded(tmp_path))


def test_recording_of_expandable_segments(tmp_path: Path) -> None:
    check(*recorded(tmp_path, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
