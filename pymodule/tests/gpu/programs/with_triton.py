"""A Triton kernel on PyTorch's tensors."""

from __future__ import annotations

import time

import steps
import torch
import triton
import triton.language as tl

COUNT = 64 << 20  # numbers of 4 bytes
BLOCK = 1024


@triton.jit
def advance(values, count, step, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    old = tl.load(values + at, mask=at < count)
    tl.store(values + at, old * 1664525 + step, mask=at < count)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = torch.arange(COUNT, dtype=torch.int32, device="cuda")
    run = steps.Run(options.steps)
    for number in run.steps():
        for i in range(8):
            advance[(triton.cdiv(COUNT, BLOCK),)](values, COUNT, 8 * number + i + 2, BLOCK=BLOCK)
        run.note(int(values.sum(dtype=torch.int64)))
        time.sleep(
            0.02
        )  # the launcher's question about the pointer is the first call after a pause
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(values.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
