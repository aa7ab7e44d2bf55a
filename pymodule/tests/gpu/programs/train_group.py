"""One rank of a training by DDP or FSDP, for test_distributed.py. Prints its losses as JSON.

train_group.py RANK COUNT MEETING ddp|fsdp STEPS PAUSE_EVERY

PAUSE_EVERY: steps after which all ranks pause and resume together; 0: never.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # the only way to reproducible matrix products

import torch
import torch.distributed as dist
from torch import nn

import tms
import tms.distributed as together


def network() -> nn.Module:
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(2048, 2048), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(2048, 10)).cuda()


def wrapped(kind: str, model: nn.Module, rank: int) -> Any:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, device_id=rank, use_orig_params=True)


def main() -> None:
    rank, count = int(sys.argv[1]), int(sys.argv[2])
    kind, steps, pause_every = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
    torch.cuda.set_device(rank)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl", init_method=sys.argv[3], rank=rank, world_size=count)
    warm = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(warm)  # NCCL's own memory is not in the region
    assert (warm == count).all()

    losses = []
    with tms.region("training", backup="host"):
        model = wrapped(kind, network(), rank)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(steps):
            torch.manual_seed(1000 * step + rank)
            pictures = torch.randn(64, 2048, device="cuda")
            labels = torch.randint(10, (64,), device="cuda")
            optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            if pause_every and step % pause_every == pause_every - 1:
                freed = together.pause()
                assert freed > 0, freed
                assert together.resume() > 0
            losses.append(loss.detach().double().cpu().item())
    print(json.dumps(losses), flush=True)
    torch.cuda.synchronize()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
