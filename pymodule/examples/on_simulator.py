"""A training in plain Python whose state lives in CUDA memory; made for the simulator.

Linear regression with momentum in float64. Weights and momenta are copied from the device before
each step and back to it afterwards, and so are the inputs, so the losses depend on every byte.
"""

from __future__ import annotations

import ctypes
import hashlib
import math
import random
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from ctypes import byref, c_size_t, c_void_p

WEIGHTS, BATCH = 256, 32
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2  # cudaMemcpyKind

ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
# The process's own symbols, as a program linked to libcudart sees them: a function looked up in
# libcudart itself would bypass libtms.so.
_process = ctypes.CDLL(None)


def _call(name: str, *arguments: object) -> None:
    code = getattr(_process, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} returned cudaError {code}{_why()}")


def _why() -> str:
    """What libtms.so says, if it is preloaded and knows more than the number."""
    try:
        says = _process.tms_last_error
    except AttributeError:
        return ""
    says.restype = ctypes.c_char_p
    return f": {text.decode()}" if (text := says()) else ""


def malloc(size: int) -> int:
    pointer = c_void_p()
    _call("cudaMalloc", byref(pointer), c_size_t(size))
    return pointer.value or 0


def write(pointer: int, values: array[float]) -> None:
    _copy(c_void_p(pointer), c_void_p(values.buffer_info()[0]), len(values), HOST_TO_DEVICE)


def read(pointer: int, count: int) -> array[float]:
    values = array("d", bytes(8 * count))
    _copy(c_void_p(values.buffer_info()[0]), c_void_p(pointer), count, DEVICE_TO_HOST)
    return values


def _copy(target: c_void_p, source: c_void_p, count: int, kind: int) -> None:
    _call("cudaMemcpy", target, source, c_size_t(8 * count), kind)


class Training:
    """Weights and momenta in a region with a backup, a workspace in one without.

    Args:
        region: tms.region, or what does nothing in its place.
    """

    device = "simulator"

    def __init__(self, region: Callable[..., AbstractContextManager[None]]) -> None:
        with region("weights", backup="host"):
            self._state = [malloc(8 * WEIGHTS) for _ in range(2)]  # weights, momenta
        for part in self._state:
            write(part, array("d", bytes(8 * WEIGHTS)))
        self._workspace_bytes = int(self.free_memory() * 0.8)
        with region("workspace"):
            self._workspace = malloc(self._workspace_bytes)

    def step(self, number: int) -> float:
        """One step on data that depends only on its number; returns the loss."""
        source = random.Random(number)
        samples = array("d", (source.uniform(-1, 1) for _ in range(BATCH * WEIGHTS)))
        write(self._workspace, samples)
        samples = read(self._workspace, BATCH * WEIGHTS)
        weights, momenta = (read(part, WEIGHTS) for part in self._state)
        gradient, loss = [0.0] * WEIGHTS, 0.0
        for k in range(0, len(samples), WEIGHTS):
            x = samples[k : k + WEIGHTS]
            error = sum((w - math.sin(i)) * v for i, (w, v) in enumerate(zip(weights, x)))
            loss += error * error / BATCH
            for i, v in enumerate(x):
                gradient[i] += 2 * error * v / BATCH
        for i, slope in enumerate(gradient):
            momenta[i] = 0.5 * momenta[i] + slope
            weights[i] -= 0.02 * momenta[i]
        for part, values in zip(self._state, (weights, momenta)):
            write(part, values)
        return loss

    def tidy(self) -> None:
        """Nothing is cached."""

    @property
    def pausable_bytes(self) -> int:
        """What a pause must free at least."""
        return self._workspace_bytes + 2 * 8 * WEIGHTS

    def addresses(self) -> list[int]:
        """Those of the weights, the momenta, and the workspace."""
        return [*self._state, self._workspace]

    def contents(self) -> list[str]:
        """A hash of the weights and of the momenta."""
        return [hashlib.blake2b(read(part, WEIGHTS)).hexdigest() for part in self._state]

    def free_memory(self) -> int:
        """The device's free bytes (cudaMemGetInfo)."""
        free, total = c_size_t(), c_size_t()
        _call("cudaMemGetInfo", byref(free), byref(total))
        return free.value


def use(size: int) -> int:
    """The address of `size` bytes of memory, written and read."""
    pointer = malloc(size)
    _call("cudaMemset", c_void_p(pointer), 255, c_size_t(size))
    assert read(pointer + size // 8 * 8 - 8, 1).tobytes() == bytes([255] * 8)
    return pointer
