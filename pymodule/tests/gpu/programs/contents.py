"""Tensors of a given size, whose contents change a little now and then."""

from __future__ import annotations

import time

import steps
import torch

PIECE = 256 << 20  # bytes


def main() -> None:
    arguments = steps.parser(__doc__)
    arguments.add_argument("bytes", type=int)
    arguments.add_argument("--rest", type=float, default=0.01, help="seconds after each step")
    options = arguments.parse_args()
    torch.manual_seed(1)
    pieces = [
        torch.empty(PIECE >> 3, dtype=torch.int64, device="cuda").random_()
        for _ in range(options.bytes // PIECE)
    ]
    weights = torch.arange(1, (PIECE >> 3) + 1, device="cuda")
    run = steps.Run(options.steps)
    for number in run.steps():
        pieces[number % len(pieces)][::4096] += number
        if number == 0:
            torch.cuda.synchronize()
            run.ready(torch.cuda.memory_reserved())
        time.sleep(options.rest)
    for piece in pieces:
        run.note(int((piece * weights).sum()))
    run.end()


if __name__ == "__main__":
    main()
