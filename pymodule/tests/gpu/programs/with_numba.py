"""A kernel of Numba's on arrays of its own."""

from __future__ import annotations

import numpy
import steps
from numba import cuda

COUNT = 32 << 20  # numbers of 4 bytes
BLOCK = 256


@cuda.jit
def advance(values, step):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.size:
        values[i] = (values[i] * 1664525 + step) & 0xFFFFFFFF


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = cuda.to_device(numpy.arange(COUNT, dtype=numpy.uint32))
    stream = cuda.stream()
    run = steps.Run(options.steps)
    for number in run.steps():
        for i in range(8):
            advance[COUNT // BLOCK, BLOCK, stream](values, 8 * number + i)
        stream.synchronize()
        run.note(values[:1024].copy_to_host().tobytes())
        if number == 0:
            run.ready(4 * COUNT)
    run.note(values.copy_to_host().tobytes())
    run.end()


if __name__ == "__main__":
    main()
