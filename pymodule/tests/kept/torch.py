"""A stand-in for PyTorch on the simulator, with strided tensors of any dtype and modules."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import cuda as runtime

__version__ = "2.11.0"


class DType:
    def __init__(self, name: str, itemsize: int) -> None:
        self.name, self.itemsize = name, itemsize
        self.is_floating_point = "float" in name

    def __str__(self) -> str:
        return f"torch.{self.name}"


uint8, bfloat16, float32 = DType("uint8", 1), DType("bfloat16", 2), DType("float32", 4)
int32 = DType("int32", 4)
strided = object()


class Storage:
    """Device memory: its own, or what somebody else keeps."""

    def __init__(self, size: int, address: int = 0, keeper: object = None) -> None:
        self._own = not address and size > 0
        self._address = runtime.malloc(size) if self._own else address
        self._keeper = keeper

    def data_ptr(self) -> int:
        return self._address

    def __del__(self) -> None:
        if self._own:
            runtime.free(self._address)


class device(SimpleNamespace):  # noqa: N801
    """As a context manager: where tensors are made that name no device."""

    default = "cuda:0"
    _outer: list[str] = []

    def __init__(self, kind: str, index: int = 0) -> None:
        kind, _, number = kind.partition(":")
        super().__init__(type=kind, index=int(number or index))

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __enter__(self) -> None:
        self._outer.append(device.default)
        device.default = str(self)

    def __exit__(self, *exception: object) -> None:
        device.default = self._outer.pop()


_device = device


class Tensor:
    _state = (
        "dtype",
        "shape",
        "_storage",
        "_offset",
        "_strides",
        "device",
        "requires_grad",
        "_base",
    )
    __slots__ = (*_state, "__dict__", "__weakref__")
    layout, is_quantized = strided, False

    def __init__(
        self,
        storage: Storage,
        dtype: DType,
        shape: Any,
        strides: Any = None,
        offset: int = 0,
        device: str = "cuda:0",
    ) -> None:
        self.dtype, self.shape = dtype, tuple(shape)
        default = tuple(math.prod(self.shape[i + 1 :]) for i in range(len(self.shape)))
        self._storage, self._offset = storage, offset
        self._strides = default if strides is None else tuple(strides)
        self.device = _device(device)
        self.requires_grad = False
        self._base: Tensor | None = None  # of a view, which keeps it

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_meta(self) -> bool:
        return self.device.type == "meta"

    def untyped_storage(self) -> Storage:
        return self._storage

    def storage_offset(self) -> int:
        return self._offset

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self.dtype.itemsize

    def numel(self) -> int:
        return math.prod(self.shape)

    def is_conj(self) -> bool:
        return False

    is_neg = is_conj

    def data_ptr(self) -> int:
        return self._storage.data_ptr() + self._offset * self.dtype.itemsize

    def view(self, dtype: DType) -> Tensor:
        assert self._strides == (1,) and self._offset % dtype.itemsize == 0
        assert self.shape[0] % dtype.itemsize == 0
        shape = (self.shape[0] // dtype.itemsize,)
        return Tensor(self._storage, dtype, shape, None, self._offset // dtype.itemsize)

    def as_strided(self, shape: Any, strides: Any) -> Tensor:
        place = str(self.device)
        made = Tensor(self._storage, self.dtype, shape, strides, self._offset, place)
        made._base = self
        return made

    def __getitem__(self, part: slice) -> Tensor:
        assert self._strides == (1,)
        begin, end, _ = part.indices(self.shape[0])
        return Tensor(self._storage, self.dtype, (end - begin,), None, self._offset + begin)

    def set_(self, storage: Storage, offset: int, shape: Any, strides: Any) -> Tensor:
        place, base = str(self.device), self._base
        self.__init__(storage, self.dtype, shape, strides, offset, place)  # type: ignore[misc]
        self._base = base
        return self

    def copy_(self, other: Tensor) -> Tensor:
        assert self.shape == other.shape and self._strides == other._strides == (1,)
        size = self.numel() * self.dtype.itemsize
        if size:
            copy = ctypes.CDLL(None).cudaMemcpy
            own, theirs = ctypes.c_void_p(self.data_ptr()), ctypes.c_void_p(other.data_ptr())
            if code := copy(own, theirs, ctypes.c_size_t(size), 3):
                raise RuntimeError(f"CUDA error {code}")
        return self

    def fill_(self, value: int) -> Tensor:
        """Sets all bytes: the tests look at no more."""
        assert not self.is_meta and 0 not in self._strides
        size = self.numel() * self.dtype.itemsize
        runtime.write(self.data_ptr(), bytes([value]) * size)
        return self

    def to(self, device: object) -> Tensor:
        assert not self.is_meta
        made = empty(*self.shape, dtype=self.dtype, device=device)
        runtime.write(made.data_ptr(), self.bytes())
        return made

    def cpu(self) -> Tensor:
        return self.to("cpu")

    def clone(self) -> Tensor:
        return empty(self.numel(), dtype=self.dtype).copy_(self)

    def requires_grad_(self, on: bool) -> Tensor:
        self.requires_grad = on
        return self

    @property
    def data(self) -> Tensor:
        place = str(self.device)
        return Tensor(self._storage, self.dtype, self.shape, self._strides, self._offset, place)

    @data.setter
    def data(self, other: Tensor) -> None:
        assert self.dtype is other.dtype and str(self.device) == str(other.device)
        assert not self.is_meta
        grad = self.requires_grad
        self.set_(other._storage, other._offset, other.shape, other._strides)
        self.requires_grad = grad

    def bytes(self) -> bytes:
        """Its memory from its first element to its last."""
        last = sum((n - 1) * stride for n, stride in zip(self.shape, self._strides))
        return runtime.read(self.data_ptr(), (last + 1) * self.dtype.itemsize)


def empty(*shape: int, dtype: DType = float32, device: object = "") -> Tensor:
    place = str(device or _device.default)
    size = 0 if place.startswith("meta") else math.prod(shape) * dtype.itemsize
    return Tensor(Storage(size), dtype, shape, device=place)


def filled(value: int, *shape: int, dtype: DType = float32, device: object = "") -> Tensor:
    """A tensor all of whose bytes are the value."""
    made = empty(*shape, dtype=dtype, device=device)
    return made if made.is_meta else made.fill_(value)


def swap_tensors(one: Tensor, other: Tensor) -> None:
    for name in (*Tensor._state, "__dict__"):
        mine, theirs = getattr(one, name), getattr(other, name)
        setattr(one, name, theirs)
        setattr(other, name, mine)
    one.__class__, other.__class__ = other.__class__, one.__class__


def as_tensor(memory: Any, device: str) -> Tensor:
    interface = memory.__cuda_array_interface__
    assert device == "cuda:0" and interface["typestr"] == "|u1" and interface["version"] == 3
    (size,), (address, read_only) = interface["shape"], interface["data"]
    assert not read_only
    return Tensor(Storage(size, address, memory), uint8, (size,))


cuda = SimpleNamespace(
    empty_cache=lambda: None,
    current_device=lambda: 0,
    mem_get_info=lambda: (runtime.free_memory(), 256 << 20),
    get_device_properties=lambda index: SimpleNamespace(uuid="GPU-0"),
)
utils = SimpleNamespace(swap_tensors=swap_tensors)
distributed = SimpleNamespace(
    get_rank=lambda: 0, get_world_size=lambda: 1, barrier=lambda group: barriers.append(group)
)
barriers: list[Any] = []
_C = SimpleNamespace(_cuda_customAllocator=lambda malloc, free: None)


class Parameter(Tensor):
    __slots__ = ()

    def __init__(self, data: Any, *rest: Any, requires_grad: bool = True) -> None:
        if isinstance(data, Tensor):
            rest = (data.dtype, data.shape, data._strides, data._offset, str(data.device))
            data = data._storage
        super().__init__(data, *rest)
        self.requires_grad = requires_grad


class Module:
    """Registered by assignment to _parameters, _buffers and _modules, as PyTorch's own are."""

    def __init__(self) -> None:
        self._parameters: dict[str, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}
        self._modules: dict[str, Module] = {}
        self.unsaved: set[str] = set()

    def _named(self, kind: str, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
        for name, tensor in getattr(self, kind).items():
            yield prefix + name, tensor
        for name, module in self._modules.items():
            yield from module._named(kind, f"{prefix}{name}.")

    def named_parameters(self, *, remove_duplicate: bool) -> Iterator[tuple[str, Tensor]]:
        assert not remove_duplicate
        return self._named("_parameters")

    def named_buffers(self, *, remove_duplicate: bool) -> Iterator[tuple[str, Tensor]]:
        assert not remove_duplicate
        return self._named("_buffers")

    def state_dict(self, *, keep_vars: bool = False) -> dict[str, Tensor]:
        both = {**dict(self._named("_parameters")), **dict(self._named("_buffers"))}
        return {name: tensor for name, tensor in both.items() if name not in self.unsaved}

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}".strip("."))

    def modules(self) -> Iterator[Module]:
        return (module for _, module in self.named_modules())

    def eval(self) -> Module:
        return self

    def get_submodule(self, path: str) -> Module:
        found = self
        for name in filter(None, path.split(".")):
            found = found._modules[name]
        return found


nn = SimpleNamespace(Module=Module, Parameter=Parameter)
