"""CuPy on its stream-ordered pool: a graph captured in every step, and FFTs of many sizes."""

from __future__ import annotations

import cupy
import steps

COUNT = 16 << 20


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    stream = cupy.cuda.Stream(non_blocking=True)
    run = steps.Run(options.steps)
    with stream:
        values = cupy.arange(COUNT, dtype=cupy.uint32)
        for number in run.steps():
            step = cupy.uint32(number)
            stream.begin_capture()
            values *= cupy.uint32(1664525)
            values += step
            graph = stream.end_capture()
            graph.launch(stream)
            graph.launch(stream)
            size = 1 << (10 + number % 8)
            spectrum = cupy.fft.fft(values[:size].astype(cupy.float64))
            stream.synchronize()
            run.note(int(values[: 1 << 16].sum(dtype=cupy.uint64)), spectrum[:4].get().tobytes())
            if number == 0:
                run.ready(4 * COUNT)
        run.note(values.get().tobytes())
    run.end()


if __name__ == "__main__":
    main()
