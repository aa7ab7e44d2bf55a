"""CuPy: a kernel of its own, elementwise functions, two streams and its memory pool."""

from __future__ import annotations

import cupy
import steps

COUNT = 64 << 20  # numbers of 4 bytes
BLOCK = 256

advance = cupy.RawKernel(
    r"""
extern "C" __global__ void advance(unsigned int *values, unsigned int count, unsigned int step)
{
    unsigned int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] = values[i] * 1664525u + step;
}
""",
    "advance",
)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    first, second = (cupy.arange(COUNT, dtype=cupy.uint32) for _ in range(2))
    side = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    run = steps.Run(options.steps)
    for number in run.steps():
        for i in range(8):
            step = cupy.uint32(8 * number + i)
            advance((COUNT // BLOCK,), (BLOCK,), (first, cupy.uint32(COUNT), step))
            with side:
                advance((COUNT // BLOCK,), (BLOCK,), (second, cupy.uint32(COUNT), step))
        side.synchronize()
        mixed = first ^ (second >> cupy.uint32(3))
        run.note(int(mixed.sum(dtype=cupy.uint64)))
        if number == 0:
            run.ready(cupy.get_default_memory_pool().total_bytes())
    for values in (first, second):
        run.note(values.get().tobytes())
    run.end()


if __name__ == "__main__":
    main()
