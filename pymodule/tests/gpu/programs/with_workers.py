"""A training of PyTorch whose batches come from worker processes through pinned memory."""

from __future__ import annotations

import steps
import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1024,), (index % 1000) / 1000)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(
        torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True))
    run = steps.Run(options.steps)
    for number in run.steps():
        batch = next(batches).cuda(non_blocking=True)
        loss = (model(batch) - batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.note(loss.item())
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.end()


if __name__ == "__main__":
    main()
