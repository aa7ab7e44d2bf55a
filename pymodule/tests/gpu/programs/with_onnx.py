"""ONNX Runtime: a network for inputs of changing size, in its arena, and one in a CUDA graph."""

from __future__ import annotations

from typing import Any

import numpy
import onnxruntime
import steps
from onnx import TensorProto, helper, numpy_helper

CUDA = "CUDAExecutionProvider"
if CUDA not in onnxruntime.get_available_providers():
    raise ImportError("ONNX Runtime is built without CUDA")

WIDTH, INNER, ROWS = 1024, 16384, 512


def network() -> bytes:
    random = numpy.random.default_rng(7)

    def weights(name: str, *shape: int) -> Any:
        values = random.standard_normal(shape, numpy.float32) * 0.02
        return numpy_helper.from_array(values.astype(numpy.float32), name)

    one = numpy_helper.from_array(numpy.ones(WIDTH, numpy.float32), "one")
    nodes = [
        helper.make_node("LayerNormalization", ["x", "one"], ["even"]),
        helper.make_node("MatMul", ["even", "up"], ["wide"]),
        helper.make_node("Tanh", ["wide"], ["bent"]),
        helper.make_node("MatMul", ["bent", "down"], ["narrow"]),
        helper.make_node("Add", ["x", "narrow"], ["y"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", WIDTH])] for name in "xy"
    ]
    made = helper.make_graph(
        nodes, "network", *ends, [one, weights("up", WIDTH, INNER), weights("down", INNER, WIDTH)]
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def session(model: bytes, **options: str) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3
    made = onnxruntime.InferenceSession(model, settings, providers=[(CUDA, options)])
    assert CUDA in made.get_providers(), "ONNX Runtime cannot use CUDA here"
    return made


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    onnxruntime.preload_dlls()
    model = network()
    changing = session(model, arena_extend_strategy="kNextPowerOfTwo")
    captured = session(model, enable_cuda_graph="1")
    random = numpy.random.default_rng(1)
    state = random.standard_normal((ROWS, WIDTH), numpy.float32)
    there, back = (onnxruntime.OrtValue.ortvalue_from_numpy(state, "cuda", 0) for _ in range(2))
    bound = captured.io_binding()
    bound.bind_ortvalue_input("x", there)
    bound.bind_ortvalue_output("y", back)
    run = steps.Run(options.steps)
    for number in run.steps():
        rows = 64 * (1 + number * 5 % 8)
        (answer,) = changing.run(None, {"x": state[:rows]})
        run.note(answer.tobytes())
        there.update_inplace(state)
        for _ in range(4):
            captured.run_with_iobinding(bound)
        state = back.numpy() / 2
        run.note(state.tobytes())
        if number == 0:
            run.ready(2 * len(model))
    run.end()


if __name__ == "__main__":
    main()
