"""Pausing a cache of which a part is in use, with its contents.

    scripts/bench.sh cache [GIB] [PERCENT]

By default 60 GiB, of which 5% are in use, in blocks that are scattered at random; the rest is zero.
Each case is a process of its own, which keeps its host memory from one pause to the next; the first
case, which copies all, is what the others are compared with. What is in use is compared after every
resume. Prints the times of the first pause, of the later ones and of the resumes (medians), and how
much host memory holds contents. It takes two minutes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from usage import timed

BLOCKS = {"2 MiB": 2 << 20, "64 KiB": 64 << 10}
CASES = [
    ("all of it", "2 MiB"),
    ("sparse", "2 MiB"),
    ("live", "2 MiB"),
    ("live, prepared", "2 MiB"),
    ("live and sparse", "2 MiB"),
    ("live", "64 KiB"),
    ("live, prepared", "64 KiB"),
]
CYCLES = 3


def case(name: str, block: int, size: int, percent: float) -> dict[str, float]:
    import tms
    import torch

    torch.manual_seed(1)
    with tms.region("cache", backup="sparse" if "sparse" in name else "host"):
        cache = torch.zeros(size // block, block // 8, dtype=torch.int64, device="cuda")
    blocks = len(cache)
    used = torch.randperm(blocks, device="cuda")[: int(blocks * percent / 100)].sort().values
    mask = torch.zeros(blocks, dtype=torch.bool)
    mask[used.cpu()] = True
    pauses, resumes, noting, kept = [], [], [], 0
    for cycle in range(CYCLES):
        for some in used.split(1 << 14):
            cache[some] = torch.randint(1, 1 << 60, (len(some), block // 8), device="cuda")
        before = cache[used]
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        if "live" in name:
            noting.append(timed(lambda: tms.live(cache, mask)))
        if "prepared" in name and cycle == 0:
            tms.prepare("cache", wait=True)
        pauses.append(timed(lambda: tms.pause("cache")))
        kept = tms.stats()["devices"][0]["tags"][0]["host_bytes"]
        time.sleep(0.5)  # else the driver scrubs freed memory during the resume
        resumes.append(timed(lambda: tms.resume("cache")))
        assert all(
            torch.equal(cache[u], b) for u, b in zip(used.split(1 << 14), before.split(1 << 14))
        )
        if "live" not in name:
            cache[used] = 0
            assert not any(part.any() for part in cache.split(1 << 14)), "zeros did not come back"
        del before
    return {
        "first": pauses[0],
        "later": statistics.median(pauses[1:]),
        "resume": statistics.median(resumes),
        "noting": statistics.median(noting or [0.0]),
        "kept": kept / (blocks * block * percent / 100),
        "host GiB": kept / 2**30,
    }


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        name, block, size, percent = sys.argv[2:]
        print(json.dumps(case(name, int(block), int(size), float(percent))))
        return
    size = int(float(sys.argv[1] if len(sys.argv) > 1 else 60) * 2**30)
    percent = float(sys.argv[2] if len(sys.argv) > 2 else 5)
    environment = {
        **os.environ,
        "LD_PRELOAD": os.path.abspath(os.path.join("build", "lib", "libtms.so")),
        "TMS_RETAIN_CPU_BACKUP": "1",
    }
    print(f"{size / 2**30:g} GiB, {percent:g}% in use; seconds")
    columns = ["first", "later", "resume", "noting", "host GiB", "kept"]
    print(
        f"{'':<28}"
        + "".join(f"{column:>10}" for column in columns)
        + "  (kept: over what is in use)"
    )
    table: dict[str, Any] = {}
    for name, block in CASES:
        command = [
            sys.executable,
            __file__,
            "--case",
            name,
            str(BLOCKS[block]),
            str(size),
            str(percent),
        ]
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        row = table[f"{name}, {block}"] = json.loads(done.stdout.splitlines()[-1])
        cells = "".join(f"{row[column]:>10.3f}" for column in columns)
        print(f"{name + ', ' + block:<28}{cells}", flush=True)
    print(json.dumps(table))


if __name__ == "__main__":
    main()
