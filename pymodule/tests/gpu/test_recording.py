"""What PyTorch does, recorded and shown in a page."""

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
import torch, tms

with tms.region("weights", backup="host"):
    weights = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
outside = torch.ones(1 << 20, device="cuda")
tms.pause("weights")
tms.resume("weights")
assert bool((weights == 1).all())
"""


def report(*arguments: str) -> None:
    subprocess.run([str(BUILD / "bin" / "tms"), "report", *arguments], check=True)


def shown(page: str) -> dict[str, Any]:
    """The data of a page, as its script reads it."""
    found: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return found


def recorded(folder: Path, **variables: str) -> tuple[list[dict[str, Any]], str]:
    """The events of a Chrome trace, and the page."""
    trace = str(folder / "it.trace")
    output(PROGRAM, TMS_TRACE=trace, **variables)
    events, page = folder / "events.json", folder / "page.html"
    report(trace, "--format", "perfetto", "-o", str(events))
    report(trace, "-o", str(page))
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
    # The largest block of the table is in the region.
    process = shown(page)["processes"][0]
    assert process["series"][process["largest"][0]["series"]]["label"].startswith("weights")


def test_recording(tmp_path: Path) -> None:
    check(*recorded(tmp_path))


def test_recording_of_expandable_segments(tmp_path: Path) -> None:
    check(*recorded(tmp_path, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
