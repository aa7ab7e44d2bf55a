"""CuPy on its own pool, whose free blocks it gives back, beside memory of plain cudaMalloc."""

from __future__ import annotations

import cupy
import steps


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    pool = cupy.get_default_memory_pool()
    kept = cupy.zeros(16 << 20, dtype=cupy.uint32)
    run = steps.Run(options.steps)
    for number in run.steps():
        size = (1 + number * 7919 % 32) << 18
        passing = cupy.full(size, number, dtype=cupy.uint32)
        kept[:size] += passing
        pinned = cupy.asnumpy(kept[:4096])
        cupy.cuda.Device().synchronize()
        run.note(pinned.tobytes())
        del passing
        if number % 4 == 0:
            pool.free_all_blocks()
        if number == 0:
            run.ready(kept.nbytes)
    run.note(kept.get().tobytes())
    run.end()


if __name__ == "__main__":
    main()
