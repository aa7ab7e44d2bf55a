"""cuda.bindings: kernels of NVRTC, loaded and unloaded in every step."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy
import steps
from cuda.bindings import driver, nvrtc

COUNT = 8 << 20
SOURCE = r"""
__device__ unsigned seen[1024];
extern "C" __global__ void advance(unsigned *values, unsigned count, unsigned step)
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        values[i] = values[i] * 1664525u + step + seen[i %% 1024] + %du;
    if (i < 1024)
        seen[i] = step;
}
"""


def ok(answer: tuple[Any, ...]) -> Any:
    assert int(answer[0]) == 0, answer[0]
    return answer[1] if len(answer) == 2 else None


def compiled(number: int) -> bytes:
    program = ok(nvrtc.nvrtcCreateProgram((SOURCE % number).encode(), b"advance.cu", 0, None, None))
    ok(nvrtc.nvrtcCompileProgram(program, 1, [b"--gpu-architecture=sm_90"]))
    image = b" " * ok(nvrtc.nvrtcGetCUBINSize(program))
    ok(nvrtc.nvrtcGetCUBIN(program, image))
    return image


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    ok(driver.cuInit(0))
    device = ok(driver.cuDeviceGet(0))
    context = ok(driver.cuDevicePrimaryCtxRetain(device))
    ok(driver.cuCtxSetCurrent(context))
    images = [compiled(number) for number in range(4)]
    values = ok(driver.cuMemAlloc(4 * COUNT))
    ok(driver.cuMemsetD32(values, 9, COUNT))
    stream = ok(driver.cuStreamCreate(0))
    host = numpy.empty(1024, dtype=numpy.uint32)
    run = steps.Run(options.steps)
    for number in run.steps():
        module = ok(driver.cuModuleLoadData(images[number % 4]))
        kernel = ok(driver.cuModuleGetFunction(module, b"advance"))
        arguments = ((int(values), COUNT, number), (ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint))
        for _ in range(2):
            ok(
                driver.cuLaunchKernel(
                    kernel, COUNT // 256, 1, 1, 256, 1, 1, 0, stream, arguments, 0
                )
            )
        ok(driver.cuStreamSynchronize(stream))
        ok(driver.cuMemcpyDtoH(host.ctypes.data, values, host.nbytes))
        run.note(host.tobytes())
        ok(driver.cuModuleUnload(module))
        if number == 0:
            run.ready(4 * COUNT)
    run.end()


if __name__ == "__main__":
    main()
