"""Several GPUs: backups of two at once against one, and contents that wait in another GPU.

    scripts/bench.sh devices

Medians of five, after a first cycle. Host backups are retained, so both directions run at the speed
of the links; what NVLink gives is measured by a copy of the same size in the same run. Contents are
compared bit for bit. Prints a table and, last, JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import Any

from usage import timed

ROUNDS = 5
IDLE = 0.5
TENSORS, EACH = 16, 1 << 30  # of every device


def contents(torch: Any, device: int) -> list[Any]:
    torch.manual_seed(device)
    return [
        torch.randint(-(2**62), 2**62, (EACH // 8,), device=f"cuda:{device}")
        for _ in range(TENSORS)
    ]


def measure(torch: Any, tms: Any, tag: str | None, tensors: list[Any]) -> tuple[float, float]:
    """Seconds of a pause and a resume."""
    before = [int(tensor.sum()) for tensor in tensors]
    pauses, resumes = [], []
    for round_ in range(ROUNDS + 1):
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)
        pause = timed(lambda: tms.pause(tag))
        time.sleep(IDLE)
        resume = timed(lambda: tms.resume(tag))
        assert [int(tensor.sum()) for tensor in tensors] == before, "contents differ"
        if round_:
            pauses.append(pause)
            resumes.append(resume)
    return statistics.median(pauses), statistics.median(resumes)


def links(torch: Any) -> tuple[float, float]:
    """Seconds of copies from the first device to the second, and back."""
    source, target = contents(torch, 0), contents(torch, 1)

    def copy(to: list[Any], of: list[Any]) -> None:
        for x, y in zip(to, of):
            x.copy_(y, non_blocking=True)
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    copy(target, source)
    there = statistics.median(timed(lambda: copy(target, source)) for _ in range(ROUNDS))
    back = statistics.median(timed(lambda: copy(source, target)) for _ in range(ROUNDS))
    return there, back


def main() -> None:
    import tms
    import torch

    if torch.cuda.device_count() < 2:
        sys.exit("devices: this benchmark needs two GPUs")
    size = TENSORS * EACH
    rows: dict[str, dict[str, float]] = {}

    there, back = links(torch)
    rows["NVLink copy"] = {"pause": size / there / 1e9, "resume": size / back / 1e9}
    torch.cuda.empty_cache()

    with tms.region("peer", backup="peer:1"):
        tensors = contents(torch, 0)
    pause, resume = measure(torch, tms, "peer", tensors)
    rows["peer store"] = {"pause": size / pause / 1e9, "resume": size / resume / 1e9}
    del tensors
    tms.empty_cache()

    made: dict[int, list[Any]] = {}
    for device in range(2):
        torch.cuda.set_device(device)
        with tms.region(f"host {device}", backup="host"):
            made[device] = contents(torch, device)
        if device == 0:
            pause, resume = measure(torch, tms, None, made[0])
            rows["host, one GPU"] = {"pause": size / pause / 1e9, "resume": size / resume / 1e9}
    pause, resume = measure(torch, tms, None, made[0] + made[1])
    rows["host, two GPUs"] = {"pause": 2 * size / pause / 1e9, "resume": 2 * size / resume / 1e9}

    baseline = {
        "peer store": "NVLink copy",
        "host, two GPUs": "host, one GPU",
    }
    print(f"{size >> 30} GiB of each GPU in {TENSORS} tensors; GB/s")
    print(f"{'':<16}{'pause':>10}{'resume':>10}")
    for name, row in rows.items():
        line = f"{name:<16}{row['pause']:>10.1f}{row['resume']:>10.1f}"
        if name in baseline:
            other = rows[baseline[name]]
            line += (
                f"   x{row['pause'] / other['pause']:.2f} and "
                f"x{row['resume'] / other['resume']:.2f} of {baseline[name]}"
            )
        print(line)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
