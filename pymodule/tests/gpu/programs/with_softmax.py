"""A softmax in Triton that sleeps between its launches, so that a pause mostly finds it asleep."""

from __future__ import annotations

import time

import steps
import torch
import triton
import triton.language as tl

ROWS, COLUMNS = 16384, 4096


@triton.jit
def softmax(output, values, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    old = tl.load(values + row * columns + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(old - tl.max(old, axis=0))
    tl.store(output + row * columns + at, power / tl.sum(power, axis=0), mask=at < columns)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    torch.manual_seed(1)
    values = torch.randn(ROWS, COLUMNS, device="cuda")
    output = torch.empty_like(values)
    run = steps.Run(options.steps)
    for number in run.steps():
        softmax[(ROWS,)](output, values, COLUMNS, BLOCK=COLUMNS)
        time.sleep(0.02)
        values.copy_(output * 100 + number % 7)
        run.note(float(output[number % ROWS].max()))
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(values.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
