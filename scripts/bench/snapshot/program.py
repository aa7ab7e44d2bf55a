"""Programs that compare each step's results with their first ones: program.py KIND FILE [BYTES].

A line of FILE has the time, the step, the PID namespace and "right" or "WRONG"; of "training" the
loss. A training ends after STEPS steps, the others go on. At SIGUSR1 "torch" changes 1% of its
memory, and that step's line has "changed".
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

PIECE = 256 << 20  # bytes
STEPS = int(os.environ.get("STEPS", "600"))
SIGNALLED: list[int] = []


def torch_tensors(size: int) -> Callable[[bool], object]:
    """Random numbers of which each step adds up all, and a CUDA graph."""
    import torch

    torch.manual_seed(1)
    pieces = [
        torch.empty(PIECE >> 3, dtype=torch.int64, device="cuda").random_()
        for _ in range(size // PIECE)
    ]
    inputs = torch.randn(512, 512, device="cuda")
    outputs = torch.empty_like(inputs)
    torch.matmul(inputs, inputs, out=outputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.matmul(inputs, inputs, out=outputs)

    def step(changes: bool) -> object:
        if changes:
            pieces[0][: size // 8 // 100].random_()
        outputs.zero_()
        graph.replay()
        sums = torch.stack([piece.sum() for piece in pieces]).tolist()
        return sums, outputs.sum().item()

    return step


def jax_arrays(_: int) -> Callable[[bool], object]:
    """A jitted function of arrays."""
    os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
    import jax
    import jax.numpy as jnp

    weights = jax.random.normal(jax.random.key(1), (64, 1024, 1024))

    @jax.jit
    def apply(weights: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.einsum("nij,njk->nik", weights, weights)).sum()

    return lambda _: float(apply(weights))


def cupy_arrays(size: int) -> Callable[[bool], object]:
    """Arrays of CuPy's pool, and a kernel of its own."""
    import cupy

    arrays = [cupy.arange(PIECE >> 3, dtype=cupy.int64) * (i + 1) for i in range(size // PIECE)]
    mix = cupy.ElementwiseKernel("int64 x", "int64 y", "y = x * 6364136223846793005LL + 1", "mix")
    return lambda _: [int(mix(array).sum()) for array in arrays]


def training() -> Callable[[bool], object]:
    """The loss of a small network, which learns in each step."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    from torch import nn

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.Dropout(0.1), nn.Linear(4096, 1024)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(_: bool) -> object:
        inputs = torch.randn(256, 1024, device="cuda")
        loss = ((model(inputs) - inputs.roll(1, 1)) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def nvml_answers(_: int) -> Callable[[bool], object]:
    """What NVML says of the devices, without CUDA."""
    threading.Thread(
        target=signal.pause, daemon=True
    ).start()  # with one thread, it would not listen
    nvml = ctypes.CDLL("libnvidia-ml.so.1")

    def call(name: str, *arguments: object) -> None:
        code = getattr(nvml, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    count, device, text = ctypes.c_uint(), ctypes.c_void_p(), ctypes.create_string_buffer(96)
    call("nvmlInit_v2")
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))

    def step(_: bool) -> object:
        answers = []
        for index in range(count.value):
            call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(device))
            call("nvmlDeviceGetUUID", device, text, len(text))
            answers.append((device.value, text.value))
        return answers

    return step


def main() -> None:
    kind, path, size = sys.argv[1], sys.argv[2], int((sys.argv[3:] or ["0"])[0])
    kinds = {
        "torch": torch_tensors,
        "jax": jax_arrays,
        "cupy": cupy_arrays,
        "nvml": nvml_answers,
    }
    signal.signal(signal.SIGUSR1, lambda number, _: SIGNALLED.append(number))
    learns = kind == "training"
    step = training() if learns else kinds[kind](size)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    first = None if learns else step(False)
    number, told = 0, False
    while not learns or number < STEPS:
        changes = bool(SIGNALLED)
        SIGNALLED.clear()
        value = step(changes)
        first = value if changes else first
        result = float(str(value)).hex() if learns else "right" if value == first else "WRONG"
        if changes:
            result = "changed"
        if result == "WRONG" and not told:
            told = True
            print(
                f"step {number} is {value}, and the first was {first}", file=sys.stderr, flush=True
            )
        space = os.stat("/proc/self/ns/pid").st_ino
        os.write(file, f"{time.time():.6f} {number} {space} {result}\n".encode())
        number += 1
        time.sleep(0.03 if learns else 0.002)


if __name__ == "__main__":
    main()
