"""Pausing and resuming the weights of a Llama-3-8B-shaped model: 15 GiB in bfloat16, random.

    scripts/bench.sh backup [PEER]

Each case is a process of its own, because a first pause can only be measured once: five of them,
medians (the peer: one). The link's own speed is measured in the same run, by copies to and from
pinned memory of the same size. Contents are compared bit for bit after every resume. Prints a
table and, last, JSON.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable

from usage import timed

ROUNDS = 5
IDLE = 0.5  # seconds paused, in which the driver scrubs freed memory; else it does so in the resume
LAYERS, HIDDEN, MLP, HEADS_KV, VOCABULARY = 32, 4096, 14336, 1024, 128256
SHAPES = [(VOCABULARY, HIDDEN), (VOCABULARY, HIDDEN)] + LAYERS * [
    (HIDDEN, HIDDEN),
    (HEADS_KV, HIDDEN),
    (HEADS_KV, HIDDEN),
    (HIDDEN, HIDDEN),
    (MLP, HIDDEN),
    (MLP, HIDDEN),
    (HIDDEN, MLP),
]


def weights(torch: Any) -> list[Any]:
    return [torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in SHAPES]


def checksum(torch: Any, tensors: list[Any]) -> list[int]:
    """Of every tensor; addition of 64-bit words, weighted by position, is the same every time."""
    sums = []
    for tensor in tensors:
        words = tensor.view(-1).view(torch.int64)
        positions = torch.arange(1, words.numel() + 1, 2, device="cuda")
        sums.append(int((words[::2] * positions).sum() + words.sum()))
    return sums


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cycles(
    torch: Any,
    made: list[Any],
    pause: Callable[[], object],
    resume: Callable[[], object],
    prepare: Callable[[], object],
    count: int,
) -> dict[str, Any]:
    before = checksum(torch, made)
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    rss = resident()
    prepare()
    pauses, resumes = [], []
    for _ in range(count):
        pauses.append(timed(pause))
        time.sleep(IDLE)
        resumes.append(timed(resume))
        assert checksum(torch, made) == before, "contents differ"
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
    begin = time.perf_counter()
    while resident() - rss > 256 << 20 and time.perf_counter() - begin < 10:
        time.sleep(0.01)
    return {
        "first": pauses[0],
        "later": statistics.median(pauses[1:] or pauses),
        "resume": statistics.median(resumes),
        "rss_back": time.perf_counter() - begin,
    }


def warm_host(size: int) -> None:
    """Touches as much memory as will be needed and gives it back: a virtual machine that gets its
    memory only as it is used would otherwise be what is measured."""
    import mmap

    memory = mmap.mmap(-1, size)
    for at in range(0, size, 4096):
        memory[at] = 1
    memory.close()


def case(name: str) -> dict[str, Any]:
    import torch

    if name == "link":
        size = sum(a * b * 2 for a, b in SHAPES)
        host = torch.empty(4 << 30, dtype=torch.uint8, pin_memory=True)
        device = torch.randint(0, 255, (4 << 30,), dtype=torch.uint8, device="cuda")

        def copy(to: Any, source: Any) -> float:
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            return timed(lambda: (to.copy_(source, non_blocking=True), torch.cuda.synchronize()))

        scale = size / (4 << 30)
        return {"first": copy(host, device) * scale, "resume": copy(device, host) * scale}
    torch.manual_seed(1)
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    if name.startswith("peer"):
        from torch_memory_saver import torch_memory_saver as peer

        peer.retain_cpu_backup = name == "peer retained"
        with peer.region(tag="weights", enable_cpu_backup=True):
            made = weights(torch)
        return cycles(
            torch, made, lambda: peer.pause("weights"), lambda: peer.resume("weights"), nothing, 2
        )
    import tms

    if name == "ours incremental":
        return incremental(torch, tms)
    if name == "ours disk":
        tms.set_disk_backup_dir(tempfile.mkdtemp(dir=os.environ.get("BENCH_DISK", ".")))
    with tms.region("weights", backup="disk" if name == "ours disk" else "host"):
        made = weights(torch)
    prepare = (lambda: tms.prepare(wait=True)) if name == "ours prepared" else nothing
    return cycles(
        torch, made, lambda: tms.pause("weights"), lambda: tms.resume("weights"), prepare, 2
    )


def incremental(torch: Any, tms: Any) -> dict[str, Any]:
    """The pause after one that nothing, or one block of 2 MiB in a hundred, has changed since."""
    with tms.region("weights", backup="host", incremental=True):
        made = weights(torch)
    time.sleep(IDLE)  # the kernel is compiled in the background

    def cycle() -> float:
        before = checksum(torch, made)
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        seconds = timed(lambda: tms.pause("weights"))
        time.sleep(IDLE)
        tms.resume("weights")
        assert checksum(torch, made) == before, "contents differ"
        return seconds

    first = cycle()
    unchanged = statistics.median(cycle() for _ in range(3))
    block = 2 << 20
    changed = []
    for round_ in range(3):
        at = 0
        for tensor in made:
            data = tensor.view(-1).view(torch.uint8)
            for offset in range(-at % (100 * block), data.numel(), 100 * block):
                data[offset + round_] ^= 1
            at += data.numel()
        changed.append(cycle())
    return {"first": first, "unchanged": unchanged, "changed": statistics.median(changed)}


def child(name: str, peer: str | None) -> dict[str, Any]:
    environment = dict(os.environ)
    library = os.path.join("build", "lib", "libtms.so")
    if name.startswith("ours"):
        environment["LD_PRELOAD"] = os.path.abspath(library)
        environment["TMS_RETAIN_CPU_BACKUP"] = str(int(name == "ours retained"))
    elif name.startswith("peer"):
        assert peer
        environment["PYTHONPATH"] = peer + ":" + environment.get("PYTHONPATH", "")
        preload = "torch_memory_saver_hook_mode_preload_cu13.abi3.so"
        environment["LD_PRELOAD"] = os.path.join(os.path.abspath(peer), preload)
    done = subprocess.run(
        [sys.executable, __file__, "--case", name],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def direct_disk(size: int) -> float:
    """Seconds that a plain O_DIRECT writer needs for as many bytes."""
    count = 2 << 30
    path = os.path.join(os.environ.get("BENCH_DISK", "."), "plain.tmp")
    try:
        seconds = timed(
            lambda: subprocess.run(
                [
                    "dd",
                    "if=/dev/zero",
                    f"of={path}",
                    "bs=64M",
                    f"count={count >> 26}",
                    "oflag=direct",
                ],
                check=True,
                stderr=subprocess.DEVNULL,
            )
        )
    finally:
        os.unlink(path)
    return seconds * size / count


def main() -> None:
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(case(sys.argv[2])))
        return
    peer = sys.argv[1] if len(sys.argv) > 1 else None
    size = sum(a * b * 2 for a, b in SHAPES)
    warm_host(size + (4 << 30))
    names = ["link", "ours", "ours prepared", "ours retained", "ours incremental"]
    names += ["peer", "peer retained"] if peer else []
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for round_ in range(ROUNDS):
        for name in names:
            if name.startswith("peer") and round_ >= 1:
                continue  # half a minute each
            runs[name].append(child(name, peer))
            print(f"round {round_ + 1}  {name:<14} {runs[name][-1]}", file=sys.stderr)
    if os.environ.get("BENCH_DISK"):
        runs["ours disk"] = [child("ours disk", None)]
        runs["plain O_DIRECT writer"] = [{"first": direct_disk(size)}]
    table = {
        name: {key: statistics.median(run[key] for run in own) for key in own[0]}
        for name, own in runs.items()
    }
    link = table["link"]
    print(f"{size / 2**30:.1f} GiB in {len(SHAPES)} tensors; seconds, medians (x: over the link's)")
    print(f"{'':<22}{'first pause':>18}{'next pause':>18}{'resume':>18}{'RSS back':>10}")
    for name, row in table.items():
        cells = [
            f"{row[key]:.3f} (x{row[key] / link[of]:.2f})" if key in row else ""
            for key, of in (("first", "first"), ("later", "first"), ("resume", "resume"))
        ]
        back = f"{row['rss_back']:.2f}" if "rss_back" in row else ""
        print(f"{name:<22}" + "".join(f"{cell:>18}" for cell in cells) + f"{back:>10}")
    for key, words in (("unchanged", "nothing"), ("changed", "1% of the blocks")):
        row = table["ours incremental"]
        ratio = row[key] / link["first"]
        print(f"next incremental pause, {words} changed: {row[key]:.4f} (x{ratio:.3f})")
    print(json.dumps(table))


if __name__ == "__main__":
    main()
