"""A training with PyTorch on the GPU: an MLP with Adam in fp32, deterministic."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS is deterministic only with this

import torch
from torch import nn

WIDTH = 8192
BATCH = 256


class Training:
    """Weights and Adam's state in a region with a backup, a workspace in one without.

    Args:
        region: tms.region, or what does nothing in its place.
    """

    def __init__(self, region: Callable[..., AbstractContextManager[None]]) -> None:
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(1)
        self.device = torch.cuda.get_device_name()
        self._region = region
        with region("weights", backup="host"):
            self.model = nn.Sequential(
                nn.Linear(1024, WIDTH),
                nn.GELU(),
                nn.Linear(WIDTH, WIDTH),
                nn.GELU(),
                nn.Linear(WIDTH, 64),
            ).cuda()
        # fused: no temporary tensors, which the first step would leave in the region's pool
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4, fused=True)
        # Like caches and activations in serving and in RL: most of the device's memory, with
        # nothing in it that must be kept.
        size = int(torch.cuda.mem_get_info()[0] * 0.6)
        with region("workspace"):
            self.workspace = torch.empty(size, dtype=torch.uint8, device="cuda")
        inputs = self.workspace[: BATCH * 1024 * 4]
        self.inputs = inputs.view(torch.float32).view(BATCH, 1024)

    def step(self, number: int) -> float:
        """One step on data that depends only on its number; returns the loss."""
        source = torch.Generator().manual_seed(number)
        self.inputs.copy_(torch.randn(BATCH, 1024, generator=source))
        targets = self.inputs[:, :64].sin()
        loss = nn.functional.mse_loss(self.model(self.inputs), targets)
        loss.backward()
        if number == 1:  # Adam makes its state now
            with self._region("weights", backup="host"):
                self.optimizer.step()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.item())

    def tidy(self) -> None:
        """Gives back what PyTorch only caches, so that the figures are tms's alone."""
        torch.cuda.empty_cache()

    def _kept(self) -> list[torch.Tensor]:
        kept: list[torch.Tensor] = list(self.model.parameters())
        for state in self.optimizer.state.values():
            kept.extend(value for value in state.values() if value.is_cuda)
        return kept

    @property
    def pausable_bytes(self) -> int:
        """What a pause must free at least."""
        return int(self.workspace.nbytes + sum(tensor.nbytes for tensor in self._kept()))

    def addresses(self) -> list[int]:
        """Those of every weight, every part of Adam's state, and the workspace."""
        return [tensor.data_ptr() for tensor in (*self._kept(), self.workspace)]

    def contents(self) -> list[str]:
        """A hash of every weight and every part of Adam's state."""
        return [
            hashlib.blake2b(tensor.detach().cpu().reshape(-1).numpy().data).hexdigest()
            for tensor in self._kept()
        ]

    def free_memory(self) -> int:
        """The device's free bytes (cudaMemGetInfo)."""
        return int(torch.cuda.mem_get_info()[0])


def use(size: int) -> torch.Tensor:
    """A tensor of `size` bytes, written and read."""
    tensor = torch.empty(size, dtype=torch.uint8, device="cuda")
    tensor.fill_(255)
    assert tensor[-1].item() == 255
    return tensor
