"""How large extents should be: what a pause and a resume cost, and what is left as slack.

    scripts/bench.sh extents [PEER]

PEER is a folder that holds the unpacked wheel of torch_memory_saver. For each size of extents the
same work: many segments without contents, paused and resumed (medians from the second cycle on,
half a second in between), and PyTorch in a region, whose cache is emptied after every second
tensor has gone: slack is what stays held beside what lives.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from layout import Bench, GiB, MiB, compiled

SIZES = [16, 64, 80, 96, 128, 256, 1024]

TORCH = """
import random, sys, torch, tms
MiB = 1 << 20
random.seed(1)
sizes = [random.choice([0.5, 1, 3, 8, 14, 28, 56, 112]) * MiB * random.uniform(0.7, 1)
         for _ in range(600)]
with tms.region("t"):
    tensors = [torch.empty(int(s), dtype=torch.uint8, device="cuda") for s in sizes]
tms.pause()
tms.resume()
live = sum(t.numel() for t in tensors[::2])
tensors = tensors[::2]
tms.empty_cache()
tag, = tms.stats()["devices"][0]["tags"]
held, reserved = tag["physical_bytes"], torch.cuda.memory_reserved()
print(live // MiB, reserved // MiB, held // MiB)
"""


def slack(extent: int) -> tuple[int, int, int]:
    """MiB that live, that PyTorch holds, and that are held on the device."""
    environment = dict(os.environ)
    environment["LD_PRELOAD"] = os.path.abspath("build/lib/libtms.so")
    environment["TMS_EXTENT_BYTES"] = str(extent * MiB)
    environment["PYTHONPATH"] = os.path.abspath("pymodule")
    done = subprocess.run(
        [sys.executable, "-c", TORCH],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    live, reserved, held = map(int, done.stdout.split())
    return live, reserved, held


def main() -> None:
    bench = Bench(compiled(), sys.argv[1] if len(sys.argv) > 1 else None)
    work = [(60 * GiB, 20 * MiB), (16 * GiB, 2 * MiB)]
    rows: dict[str, list[tuple[float, float]]] = {}
    left: dict[int, tuple[int, int, int]] = {}
    for extent in SIZES:
        os.environ["TMS_EXTENT_BYTES"] = str(extent * MiB)
        rows[str(extent)] = [bench.cycle("ours", total // size, size) for total, size in work]
        left[extent] = slack(extent)
    del os.environ["TMS_EXTENT_BYTES"]
    if "peer" in bench.libraries:
        rows["peer"] = [bench.cycle("peer", total // size, size) for total, size in work]
    print("extents, MiB   60 GiB in 3072: pause, resume   16 GiB in 8192: pause, resume")
    for name, (large, small) in rows.items():
        cells = f"{large[0]:14.1f} {large[1]:8.1f} {small[0]:22.1f} {small[1]:8.1f}"
        print(f"  {name:<10} {cells}   ms")
    print("extents, MiB   live   held by PyTorch   on the device   slack beyond PyTorch's")
    for extent, (live, reserved, held) in left.items():
        print(f"  {extent:<10} {live:8} {reserved:14} {held:15} {held - reserved:14}   MiB")
    print(json.dumps({"cycles": rows, "slack": left}))


if __name__ == "__main__":
    main()
