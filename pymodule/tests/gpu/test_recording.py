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


def shown(page: str) -> dict[str, Any]:
    """The data of a page, as its script reads it."""
    found: dict[str, Any] = json.loads(page.split('id="data">')[1].split("</script>")[0])
    return found


def recorded(folder: Path, **variables: str) -> tuple[list[dict[str, Any]], str]:
    """The events of a Chrome trace, and the page, which has PyTorch's stacks."""
    trace, snapshot = str(folder / "it.trace"), str(folder / "snapshot.json")
    output(PROGRAM, snapshot, TMS_TRACE=trace, **variables)
    events, page = folder / "events.json", folder / "page.html"
    report(trace, "--format", "perfetto", "-o", str(events))
    report(trace, "--torch-snapshot", snapshot, "-o", str(page))
    told = json.loads(Path(snapshot).read_text())
    for segment in told["segments"]:
        print({**segment, "blocks": segment["blocks"][:2]}, file=sys.stderr)
    for entry in told["device_traces"][0][:4]:
        print(entry, file=sys.stderr)
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
    # The largest of the table is in a region, and by build() of python -c.
    largest = shown(page)["processes"][0]["largest"][0]
    print(largest, file=sys.stderr)
    assert largest["where"].startswith("build (<string>:"), largest


def test_recording(tmp_path: Path) -> None:
    check(*recorded(tmp_path))


def test_recording_of_expandable_segments(tmp_path: Path) -> None:
    check(*recorded(tmp_path, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"))
