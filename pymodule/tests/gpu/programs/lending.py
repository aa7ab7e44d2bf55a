"""An actor for test_ray.py: a model with weights, which are kept, and unkept working memory."""

from __future__ import annotations

import os

import torch

import tms

SIZE, LAYERS = 8192, 16  # 4 GiB


class Model:
    """A model that trains, or generates.

    Args:
        seed: of its weights.
        share: of the device's memory, for the working memory.
    """

    def __init__(self, seed: int, share: float) -> None:
        self.generator = torch.Generator("cuda")
        with tms.region("weights", backup="host"):
            self.weights = torch.empty(LAYERS, SIZE, SIZE, device="cuda")
        with tms.region("cache"):
            size = int(share * torch.cuda.mem_get_info()[1])
            self.cache = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.begin(seed)

    def begin(self, seed: int) -> None:
        """Sets the weights to those of the seed."""
        self.generator.manual_seed(seed)
        self.weights.normal_(0, SIZE**-0.5, generator=self.generator)

    def output(self) -> torch.Tensor:
        """A sum of all weights; it uses the working memory from end to end."""
        self.cache.fill_(3)
        state = torch.ones(SIZE, device="cuda")
        for layer in self.weights:
            state = torch.tanh(layer @ state)
        assert int(self.cache[-1]) == int(self.cache[0]) == 3
        return state

    def generate(self) -> float:
        return float(self.output().double().sum())

    def step(self) -> float:
        """Does one step, which changes all weights, and returns its loss."""
        loss = self.output().square().mean()
        self.weights.mul_(1 - 0.01 * loss)
        return float(loss)

    def held(self) -> int:
        """Bytes of device memory of its tags."""
        return sum(tag["physical_bytes"] for d in tms.stats()["devices"] for tag in d["tags"])

    def place(self) -> tuple[str, int]:
        """The device, as the process may see it, and the process."""
        return os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.getpid()
