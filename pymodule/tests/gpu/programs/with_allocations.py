"""PyTorch that allocates other sizes in each step and gives its cache back.

PYTORCH_CUDA_ALLOC_CONF chooses how it allocates.
"""

from __future__ import annotations

import steps
import torch


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    kept = torch.zeros(32 << 20, dtype=torch.int32, device="cuda")
    held: list[torch.Tensor] = []
    run = steps.Run(options.steps)
    for number in run.steps():
        size = (1 + number * 7919 % 48) << 18
        held.append(torch.full((size,), number, dtype=torch.int32, device="cuda"))
        kept[:size] += held[-1]
        if len(held) > 12:
            run.note(int(held.pop(number % len(held)).sum(dtype=torch.int64)))
        if number % 5 == 0:
            torch.cuda.empty_cache()
        if number == 0:
            run.ready(torch.cuda.memory_allocated())
    run.note(kept.cpu().numpy().tobytes(), *(int(t[-1]) for t in held))
    run.end()


if __name__ == "__main__":
    main()
