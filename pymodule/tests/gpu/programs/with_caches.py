"""What PyTorch has cached in pools of several kinds, beside a tensor: `with_caches.py KIND PLACE`.

It needs no kernels. It is to be paused while it waits for the end of its standard input.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch

MiB = 1 << 20
PLUGIN = """
#include <stddef.h>
int cudaMalloc(void **, size_t);
int cudaFree(void *);
void *get(ptrdiff_t size, int device, void *stream)
{
    void *memory = NULL;
    return cudaMalloc(&memory, size) ? NULL : memory;
}
void give(void *memory, ptrdiff_t size, int device, void *stream) { cudaFree(memory); }
"""


def full(mib: int, value: int) -> Any:
    made = torch.empty(mib * MiB, dtype=torch.uint8, device="cuda")
    return made.copy_(torch.full((mib * MiB,), value, dtype=torch.uint8))


def plugged(place: str) -> Any:
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", f"{place}/plugin.so"]
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run(command, input=PLUGIN, text=True, check=True, env=environment)
    return torch.cuda.memory.CUDAPluggableAllocator(f"{place}/plugin.so", "get", "give")


kind, place = sys.argv[1:3]
if kind == "pluggable":
    torch.cuda.memory.change_current_allocator(plugged(place))
kept: list[Any] = [full(40, 7)]
owner: Any = None
if kind == "graph":
    owner = torch.cuda.CUDAGraph()
    with torch.cuda.graph(owner, pool=torch.cuda.graph_pool_handle()):
        kept.append(torch.empty(64 * MiB, dtype=torch.uint8, device="cuda"))
        torch.empty(128 * MiB, dtype=torch.uint8, device="cuda")
    kept[1].copy_(torch.full((64 * MiB,), 9, dtype=torch.uint8))
elif kind.startswith("pool"):
    owner = torch.cuda.MemPool(plugged(place).allocator() if kind == "pool plugged" else None)
    with torch.cuda.use_mem_pool(owner):
        kept.append(full(64, 9))
        full(128, 1)
full(256, 1)
print("ready", 40 * MiB, flush=True)
sys.stdin.read()
for tensor, value in zip(kept, (7, 9)):
    assert bool((tensor.cpu() == value).all()), value
again = full(256, 3)
assert bool((again.cpu() == 3).all())
print("steps 1")
print("digest right")
