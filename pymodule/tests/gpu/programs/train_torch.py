"""A training with convolutions, matrix products, a DataLoader with workers and CUDA graphs."""

from __future__ import annotations

import contextlib
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # the only way to reproducible matrix products

import steps
import torch
from torch import nn

BATCH, EACH = 32, 8  # pictures; training steps in one counted step
CAPTURE_EVERY = 16  # counted steps


class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Noise, the same for the same index."""

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(index)), index % 10


class Filler:
    """Memory with contents to save: every step changes a part, and the end reads it all."""

    def __init__(self, size: int, tag: str) -> None:
        self._keeps = not tag
        region: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if tag:
            import tms

            region = tms.region(tag)
        with region:
            sizes = [min(1 << 30, size - at) >> 21 << 21 for at in range(0, size, 1 << 30)]
            self._parts = [torch.empty(s, dtype=torch.uint8, device="cuda") for s in sizes]
        if self._keeps:
            for part in self._parts:
                part.view(torch.int64).random_()

    def step(self, number: int) -> None:
        for part in self._parts:
            part[:: 1 << 21] = number % 251

    def contents(self) -> int:
        if not self._keeps:
            return 0
        total = 0
        for part in (p for own in self._parts for p in own.view(torch.int64).split(1 << 24)):
            weights = torch.arange(1, part.numel() + 1, device="cuda")
            total = total * 31 + int((part * weights).sum())
        return total


class Judge:
    """A CUDA graph that adds a network's result for the pictures to a total."""

    def __init__(self) -> None:
        self.pictures = torch.zeros(BATCH, 3 * 32 * 32, device="cuda")
        self.total = torch.zeros((), device="cuda")
        self._network = nn.Sequential(nn.Linear(3072, 512), nn.GELU(), nn.Linear(512, 1)).cuda()

    def _judge(self) -> None:
        with torch.no_grad():
            self.total.add_(self._network(self.pictures).mean())

    def capture(self) -> None:
        total = self.total.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._judge()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._judge()
        self.total.copy_(total)

    def step(self, pictures: torch.Tensor) -> None:
        self.pictures.copy_(pictures.flatten(1))
        self._graph.replay()


def main() -> None:
    arguments = steps.parser(__doc__)
    arguments.add_argument("--compile", action="store_true", help="the model by torch.compile")
    arguments.add_argument("--filler", type=int, default=0, help="bytes beside the training")
    arguments.add_argument("--filler-tag", default="", help="of those: none are kept")
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False

    model: nn.Module = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16 * 16, 256),
        nn.ReLU(),
        nn.Linear(256, 10),
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    if options.compile:
        model = torch.compile(model)
    batches = iter(
        torch.utils.data.DataLoader(
            Pictures(), batch_size=BATCH, num_workers=2, multiprocessing_context="fork", timeout=120
        )
    )
    judge, filler = Judge(), Filler(options.filler, options.filler_tag)
    run = steps.Run(options.steps)
    for number in run.steps():
        if number % CAPTURE_EVERY == 0:
            judge.capture()
        losses = []
        for _ in range(EACH):
            pictures, labels = (part.cuda(non_blocking=True) for part in next(batches))
            loss = nn.functional.cross_entropy(model(pictures), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            judge.step(pictures)
            losses.append(loss.detach())
        filler.step(number)
        run.note(torch.stack(losses).tolist(), judge.total.item())
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(filler.contents())
    run.end()


if __name__ == "__main__":
    main()
