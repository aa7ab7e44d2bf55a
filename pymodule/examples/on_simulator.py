"""A training in plain Python whose state lives in CUDA memory; made for the simulator.

An MLP with Adam in float64. Weights and moments are copied from the device before each step
and back to it afterwards, and so are the inputs, so the losses depend on every byte.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import random
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

INPUTS, HIDDEN, BATCH = 4, 16, 32
WEIGHTS = (INPUTS + 1) * HIDDEN + HIDDEN + 1
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind


class Runtime:
    """The CUDA runtime by ctypes."""

    def __init__(self) -> None:
        ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        # The process's own symbols, as a program linked to libcudart sees them: a function
        # looked up in libcudart itself would bypass libtms.so.
        self._process = ctypes.CDLL(None)
        self._process.cudaMalloc.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t]
        self._process.cudaMemset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
        self._process.cudaMemcpy.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
        ]

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._process, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned cudaError {code}")

    def malloc(self, size: int) -> int:
        pointer = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(pointer), size)
        return pointer.value or 0

    def fill(self, pointer: int, value: int, size: int) -> None:
        self._call("cudaMemset", pointer, value, size)

    def write(self, pointer: int, values: array[float]) -> None:
        address, count = values.buffer_info()
        self._call("cudaMemcpy", pointer, address, count * values.itemsize, HOST_TO_DEVICE)

    def read(self, pointer: int, count: int) -> array[float]:
        values = array("d", bytes(8 * count))
        address, _ = values.buffer_info()
        self._call("cudaMemcpy", address, pointer, count * values.itemsize, DEVICE_TO_HOST)
        return values

    def free_memory(self) -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value


class Training:
    """Weights and Adam's state in a region with a backup, a workspace in one without.

    Args:
        region: tms.region, or what does nothing in its place.
    """

    device = "simulator"

    def __init__(self, region: Callable[..., AbstractContextManager[None]]) -> None:
        self._runtime = runtime = Runtime()
        source = random.Random(1)
        with region("weights", backup="host"):
            self._state = [runtime.malloc(8 * WEIGHTS) for _ in range(3)]  # weights, 2 moments
        runtime.write(self._state[0], array("d", (source.gauss(0, 0.5) for _ in range(WEIGHTS))))
        for moment in self._state[1:]:
            runtime.write(moment, array("d", bytes(8 * WEIGHTS)))
        self._workspace_bytes = int(runtime.free_memory() * 0.8)
        with region("workspace"):
            self._workspace = runtime.malloc(self._workspace_bytes)

    def step(self, number: int) -> float:
        """One step on data that depends only on its number; returns the loss."""
        source = random.Random(number)
        samples = array("d", (source.uniform(-2, 2) for _ in range(BATCH * INPUTS)))
        self._runtime.write(self._workspace, samples)
        samples = self._runtime.read(self._workspace, BATCH * INPUTS)
        weights, first, second = (self._runtime.read(part, WEIGHTS) for part in self._state)
        loss, gradient = loss_and_gradient(weights, samples)
        for i, slope in enumerate(gradient):
            first[i] = 0.9 * first[i] + 0.1 * slope
            second[i] = 0.999 * second[i] + 0.001 * slope * slope
            mean = first[i] / (1 - 0.9**number)
            spread = math.sqrt(second[i] / (1 - 0.999**number))
            weights[i] -= 0.02 * mean / (spread + 1e-8)
        for part, values in zip(self._state, (weights, first, second)):
            self._runtime.write(part, values)
        return loss

    def tidy(self) -> None:
        """Nothing is cached."""

    @property
    def pausable_bytes(self) -> int:
        """What a pause must free at least."""
        return self._workspace_bytes + 3 * 8 * WEIGHTS

    def addresses(self) -> list[int]:
        """Those of the weights, both moments, and the workspace."""
        return [*self._state, self._workspace]

    def contents(self) -> list[str]:
        """A hash of the weights and of each moment."""
        parts = (self._runtime.read(part, WEIGHTS) for part in self._state)
        return [hashlib.blake2b(part).hexdigest() for part in parts]

    def free_memory(self) -> int:
        """The device's free bytes (cudaMemGetInfo)."""
        return self._runtime.free_memory()


def use(size: int) -> tuple[Runtime, int]:
    """`size` bytes of memory, written and read."""
    runtime = Runtime()
    pointer = runtime.malloc(size)
    runtime.fill(pointer, 255, size)
    assert runtime.read(pointer + size // 8 * 8 - 8, 1).tobytes() == bytes([255] * 8)
    return runtime, pointer


def loss_and_gradient(weights: array[float], samples: array[float]) -> tuple[float, list[float]]:
    """Mean squared error of a tanh MLP on sum(sin(x)), and its gradient."""
    gradient = [0.0] * WEIGHTS
    out = (INPUTS + 1) * HIDDEN
    loss = 0.0
    for k in range(0, len(samples), INPUTS):
        x = (*samples[k : k + INPUTS], 1.0)
        hidden = [
            math.tanh(sum(w * v for w, v in zip(weights[j * (INPUTS + 1) :], x)))
            for j in range(HIDDEN)
        ]
        y = sum(weights[out + j] * h for j, h in enumerate(hidden)) + weights[out + HIDDEN]
        error = y - sum(map(math.sin, x[:INPUTS]))
        loss += error * error / BATCH
        slope = 2 * error / BATCH
        gradient[out + HIDDEN] += slope
        for j, h in enumerate(hidden):
            gradient[out + j] += slope * h
            inner = slope * weights[out + j] * (1 - h * h)
            for i, v in enumerate(x):
                gradient[j * (INPUTS + 1) + i] += inner * v
    return loss, gradient
