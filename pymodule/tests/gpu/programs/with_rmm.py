"""CuPy on RMM's pool over its arena and stream-ordered resources, as cuDF uses it."""

from __future__ import annotations

import cupy
import rmm
import steps
from rmm.allocators.cupy import rmm_cupy_allocator


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    rmm.mr.set_current_device_resource(
        rmm.mr.PoolMemoryResource(rmm.mr.CudaAsyncMemoryResource(), initial_pool_size=128 << 20)
    )
    cupy.cuda.set_allocator(rmm_cupy_allocator)
    kept = cupy.zeros(16 << 20, dtype=cupy.uint32)
    buffers: list[rmm.DeviceBuffer] = []
    run = steps.Run(options.steps)
    for number in run.steps():
        buffers.append(rmm.DeviceBuffer.to_device(bytes([number % 251]) * (1 << 20)))
        passing = cupy.full((1 + number % 13) << 18, number, dtype=cupy.uint32)
        kept[: passing.size] += passing
        if len(buffers) > 16:
            run.note(buffers.pop(0).copy_to_host()[:16].tobytes())
        run.note(int(kept[: 1 << 16].sum(dtype=cupy.uint64)))
        if number == 0:
            run.ready(128 << 20)
    run.note(kept.get().tobytes())
    run.end()


if __name__ == "__main__":
    main()
