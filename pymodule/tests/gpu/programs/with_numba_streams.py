"""Numba that makes and drops arrays on two streams, with pinned and mapped host memory."""

from __future__ import annotations

import numpy
import steps
from numba import cuda

COUNT = 4 << 20
BLOCK = 256


@cuda.jit
def advance(values, others, step):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < values.size:
        values[i] = (values[i] * 1664525 + others[i] + step) & 0xFFFFFFFF


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = cuda.to_device(numpy.arange(COUNT, dtype=numpy.uint32))
    pinned = cuda.pinned_array(COUNT, dtype=numpy.uint32)
    mapped = cuda.mapped_array(1024, dtype=numpy.uint32)
    streams = cuda.stream(), cuda.stream()
    run = steps.Run(options.steps)
    for number in run.steps():
        pinned[:] = number
        mapped[:] = number * 3
        passing = cuda.to_device(pinned, stream=streams[number % 2])
        advance[COUNT // BLOCK, BLOCK, streams[number % 2]](values, passing, number)
        advance[1024 // BLOCK, BLOCK, streams[number % 2]](values[:1024], mapped, number)
        streams[number % 2].synchronize()
        run.note(values[:1024].copy_to_host().tobytes())
        del passing
        if number == 0:
            run.ready(4 * COUNT)
    run.note(values.copy_to_host().tobytes())
    run.end()


if __name__ == "__main__":
    main()
