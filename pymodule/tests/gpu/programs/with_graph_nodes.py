"""cuda.bindings: a graph made of nodes in every step, updated in place and launched."""

from __future__ import annotations

import ctypes
from typing import Any

import steps
from cuda.bindings import runtime as cudart

SIZE = 64 << 20


def ok(answer: tuple[Any, ...]) -> Any:
    assert answer[0] == cudart.cudaError_t.cudaSuccess, answer[0]
    return answer[1] if len(answer) == 2 else None


def fill(value: int, at: int) -> cudart.cudaMemsetParams:
    made = cudart.cudaMemsetParams()
    made.dst, made.elementSize, made.value, made.width, made.height = at, 4, value, SIZE // 8, 1
    return made


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    first, second = ok(cudart.cudaMalloc(SIZE)), ok(cudart.cudaMalloc(SIZE))
    stream = ok(cudart.cudaStreamCreate())
    host = (ctypes.c_uint32 * 1024)()
    kind = cudart.cudaMemcpyKind
    run = steps.Run(options.steps)
    for number in run.steps():
        graph = ok(cudart.cudaGraphCreate(0))
        low = ok(cudart.cudaGraphAddMemsetNode(graph, None, 0, fill(number, first)))
        high = ok(
            cudart.cudaGraphAddMemsetNode(graph, None, 0, fill(number * 7, first + SIZE // 2))
        )
        copied = ok(
            cudart.cudaGraphAddMemcpyNode1D(
                graph, [low, high], 2, second, first, SIZE, kind.cudaMemcpyDeviceToDevice
            )
        )
        assert copied is not None
        made = ok(cudart.cudaGraphInstantiate(graph, 0))
        ok(cudart.cudaGraphLaunch(made, stream))
        ok(cudart.cudaGraphExecMemsetNodeSetParams(made, low, fill(number + 5, first)))
        ok(cudart.cudaGraphLaunch(made, stream))
        ok(cudart.cudaStreamSynchronize(stream))
        for at in (second, second + SIZE - 4096):
            ok(cudart.cudaMemcpy(ctypes.addressof(host), at, 4096, kind.cudaMemcpyDeviceToHost))
            run.note(bytes(host))
        ok(cudart.cudaGraphExecDestroy(made))
        ok(cudart.cudaGraphDestroy(graph))
        if number == 0:
            run.ready(2 * SIZE)
    run.end()


if __name__ == "__main__":
    main()
