"""A set of the library's functions, and where its tensors lie."""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from ._arguments import check_text
from ._errors import from_code
from ._library import Library


class Set:
    """A handle of the library, closed when neither this nor a tensor of its memory is left."""

    def __init__(
        self, library: Library, name: str, doing: str, make: Callable[..., int], *more: int
    ) -> None:
        self.library = library
        self._name = name
        self.handle = ctypes.c_void_p()
        # First, because an interrupt may come when the call has filled the handle in. The end is
        # C's code, where none comes: next() closes the handle, and the reference is its default.
        close = map(library.c.tms_kept_close, filter(None, (self.handle,)))
        ends = functools.partial(next, itertools.chain(close, (None,)))
        _ends[id(self)] = weakref.ref(self, ends)
        self.check(make(ctypes.byref(self.handle), check_text("name", name), *more), doing)

    def manifest(self) -> dict[str, Any]:
        size = ctypes.c_size_t()
        read = self.library.c.tms_kept_manifest
        self.check(read(self.handle, None, 0, ctypes.byref(size)), "reading")
        text = ctypes.create_string_buffer(size.value)
        self.check(read(self.handle, text, size.value, None), "reading")
        try:
            manifest = json.loads(text.raw)
        except ValueError:
            manifest = None
        return manifest if isinstance(manifest, dict) else {}

    def add(self, torch: Any, number: int, size: int) -> Any:
        """One more chunk, as bytes that can be written."""
        address = ctypes.c_void_p()
        code = self.library.c.tms_kept_add(self.handle, size, ctypes.byref(address))
        self.check(code, "publishing")
        return self._chunk(torch, number)

    def seal(self, manifest: bytes) -> None:
        code = self.library.c.tms_kept_seal(self.handle, manifest, len(manifest))
        self.check(code, "publishing")

    def attached(self, torch: Any) -> list[Any]:
        """All chunks, as bytes."""
        self.check(self.library.c.tms_kept_attach(self.handle), "attaching")
        chunks: list[Any] = []
        while (chunk := self._chunk(torch, len(chunks))) is not None:
            chunks.append(chunk)
        return chunks

    def _chunk(self, torch: Any, number: int) -> Any:
        address, size, device = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int()
        code = self.library.c.tms_kept_chunk(
            self.handle, number, ctypes.byref(address), ctypes.byref(size), ctypes.byref(device)
        )
        if code or not address.value:
            return None
        memory = _Memory(self, address.value, size.value)
        return torch.as_tensor(memory, device=f"cuda:{device.value}")

    def number(self, ask: Callable[..., int], doing: str, *more: Any) -> int:
        """What a function of the library fills in."""
        found = ctypes.c_uint64()
        self.check(ask(self.handle, ctypes.byref(found), *more), doing)
        return found.value

    def check(self, code: int, doing: str) -> None:
        if code:
            raise from_code(code, f"{doing} the set {self._name!r}", self.library.last_error)


_ends: dict[int, weakref.ref[Set]] = {}
"""What closes the handle of each set, by its number in Python, which a later set may get."""


class _Memory:
    """Device memory for `torch.as_tensor`, which keeps it, and with it the set."""

    def __init__(self, of: Set, address: int, size: int) -> None:
        self._of = of
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),  # PyTorch takes nothing that is read-only
            "version": 3,
        }


class Place(NamedTuple):
    """Where a tensor lies: offset and bytes are in bytes, strides are in elements."""

    chunk: int
    offset: int
    bytes: int
    dtype: str
    shape: list[int]
    strides: list[int]

    def view(self, torch: Any, chunks: list[Any]) -> Any:
        flat = chunks[self.chunk][self.offset : self.offset + self.bytes]
        flat = flat.view(getattr(torch, self.dtype))
        return flat.as_strided(self.shape, self.strides)
