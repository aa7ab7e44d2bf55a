"""What rollout.py needs of PyTorch, on the simulator, which runs no kernels: tensors of bytes."""

from __future__ import annotations

import ctypes

ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
_runtime = ctypes.CDLL(None)  # the process's own symbols: libtms.so comes before libcudart
_TO_DEVICE, _TO_HOST = 1, 2  # cudaMemcpyKind
uint8 = "uint8"


def _call(name: str, *arguments: object) -> None:
    code = getattr(_runtime, name)(*arguments)
    if code:
        raise RuntimeError(f"{name} returned cudaError {code}")


class Tensor:
    def __init__(self, size: int) -> None:
        self._address, self._size = ctypes.c_void_p(), ctypes.c_size_t(size)
        _call("cudaMalloc", ctypes.byref(self._address), self._size)

    def fill_(self, value: int) -> None:
        _call("cudaMemset", self._address, value % 256, self._size)

    def add_(self, value: int) -> None:
        sums = self._read().translate(bytes((old + value) % 256 for old in range(256)))
        _call("cudaMemcpy", self._address, sums, self._size, _TO_DEVICE)

    def __getitem__(self, index: int) -> int:
        return self._read()[index]

    def _read(self) -> bytes:
        buffer = ctypes.create_string_buffer(self._size.value)
        _call("cudaMemcpy", buffer, self._address, self._size, _TO_HOST)
        return buffer.raw


def empty(shape: tuple[int], *, dtype: str, device: str) -> Tensor:
    assert (dtype, device) == (uint8, "cuda")
    return Tensor(shape[0])


class cuda:
    @staticmethod
    def mem_get_info() -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        _call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value
