"""Contiguous tensors of bytes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import cuda as runtime

from . import _memory
from ._graph import run


class CpuTensor:
    is_cuda = False
    device = "cpu"
    dtype = "torch.uint8"

    def __init__(self, memory: Any, shape: tuple[int, ...] | None = None) -> None:
        self._memory = memory
        self.shape = shape or (len(memory),)

    def __getitem__(self, index: Any) -> CpuTensor:
        part = self._memory[index] if isinstance(index, slice) else bytes([self._memory[index]])
        return CpuTensor(part)

    def __eq__(self, other: object) -> Any:
        return CpuTensor(bytes(self._memory).translate(bytes(n == other for n in range(256))))

    def all(self) -> bool:
        return 0 not in bytes(self._memory)

    def clone(self) -> CpuTensor:
        return CpuTensor(bytes(self._memory), self.shape)

    def item(self) -> int:
        (value,) = self._memory
        return int(value)

    def tolist(self) -> list[int]:
        return list(self._memory)

    def view(self, shape: tuple[int, ...]) -> CpuTensor:
        assert math.prod(shape) == len(self._memory)
        return CpuTensor(self._memory, shape)


class Tensor:
    is_cuda = True
    dtype = "torch.uint8"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.nbytes = math.prod(shape)
        self._segment = _memory.allocate(self.nbytes)
        self.device = f"cuda:{self._segment[3]}"

    def __del__(self) -> None:
        if hasattr(self, "_segment"):
            _memory.give_back(*self._segment)

    def __add__(self, number: int) -> Tensor:
        result = Tensor(self.shape)
        result.copy_(self)
        result.add_(number)
        return result

    def __eq__(self, other: object) -> Any:
        return self.cpu() == other

    def __getitem__(self, index: Any) -> CpuTensor:
        return self.cpu()[index]

    def add_(self, number: int) -> Tensor:
        address, size = self._segment[0], self.nbytes
        sums = bytes((n + number) % 256 for n in range(256))
        self._set(lambda: runtime.read(address, size).translate(sums))
        return self

    def copy_(self, source: Tensor | CpuTensor) -> Tensor:
        if isinstance(source, Tensor):
            address, size = source._segment[0], self.nbytes
            self._set(lambda: runtime.read(address, size))
        else:
            self._set(lambda: bytes(source._memory))
        return self

    def cpu(self) -> CpuTensor:
        return CpuTensor(runtime.read(self._segment[0], self.nbytes), self.shape)

    def data_ptr(self) -> int:
        return self._segment[0]

    def fill_(self, number: int) -> Tensor:
        self._set(lambda: bytes([number]) * self.nbytes)
        return self

    def is_contiguous(self) -> bool:
        return True

    def untyped_storage(self) -> Any:
        return SimpleNamespace(data_ptr=self.data_ptr, nbytes=lambda: self.nbytes)

    def _set(self, contents: Any) -> None:
        address = self._segment[0]
        run(lambda: runtime.write(address, contents()))


def empty(shape: tuple[int, ...] | int, *, dtype: str, device: str) -> Tensor:
    assert (dtype, device) == ("torch.uint8", "cuda")
    return Tensor((shape,) if isinstance(shape, int) else shape)


def full(shape: tuple[int, ...], number: int, *, dtype: str, device: str) -> Tensor:
    return empty(shape, dtype=dtype, device=device).fill_(number)


def zeros(shape: tuple[int, ...], *, dtype: str, device: str) -> Tensor:
    return full(shape, 0, dtype=dtype, device=device)
