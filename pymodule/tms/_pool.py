"""Pools: sub-allocators for device memory, for your own programs and for PyTorch."""

from __future__ import annotations

import ctypes
import importlib
import json
import re
from typing import Any, Union, cast

from . import _torch
from ._arguments import check_text, check_whole, shown
from ._errors import NotSupportedError, OutOfMemoryError, TmsError, from_code
from ._library import Library, load, read
from ._private import private, setter
from ._scope import Scope, ThreadScope

Option = Union[bool, int, float, str]
"""A setting of a kind of pool. A size is a number of bytes, or text such as "64MiB"."""


def pool(kind: str, device: int | None = None, **options: Option) -> Pool:
    """Makes an empty pool, which splits a few large segments of device memory into allocations.

    A pool made inside a `region` takes pausable segments with the region's tag and backup, wherever
    it is used later: its allocations are paused and resumed with the tag. A pool made outside takes
    ordinary memory (cudaMalloc).

    Args:
        kind: "naive", "freelist", "buddy", "slab", "caching" (PyTorch's way), "bfc"
            (TensorFlow's) or "paddle" (PaddlePaddle's).
        device: the ordinal of a GPU, by default the current one.
        options: the kind's settings, such as max_split_size="40MiB" for "caching". For all kinds:
            memory="pinned" (cuMemHostAlloc) or "host": host memory, which is never paused.

    Raises:
        TmsError: the kind, an option or the device does not exist; the message names valid ones.
        TypeError, ValueError: an argument is not what it should be.
        ForkedError, NotPreloadedError: as for `pause`.
    """
    chosen = _kind(kind), _text(options)
    ordinal = (
        -1 if device is None else check_whole("device", device, "the ordinal of a GPU or None")
    )
    library = load()
    handle = ctypes.c_void_p()
    code = library.c.tms_pool_create(ctypes.byref(handle), *chosen, ordinal)
    _check(library, code, f"making a pool of kind {kind!r}")
    return Pool(library, kind, handle)


class Pool:
    """A pool, made by `pool`. Addresses are ints, sizes are in bytes; any thread may call.

    It is a context manager that closes the pool.
    """

    def __init__(self, library: Library, kind: str, handle: ctypes.c_void_p) -> None:
        self.kind = kind
        self._library = library
        self._handle = handle
        self._closed = False

    def malloc(self, size: int, stream: int = 0) -> int:
        """Returns the address of `size` bytes, usable in the order of a stream; 0 for no bytes.

        Args:
            stream: a cudaStream_t, such as `torch.cuda.Stream.cuda_stream`. Only "caching" uses it:
                with the other kinds, free only memory that no stream uses any longer.

        Raises:
            OutOfMemoryError: neither the pool nor the device has room; the message names a pool's
                option that would help, if there is one.
            TmsError: the pool is closed.
            TypeError, ValueError: `size` or `stream` is no number of 64 bits, or negative.
        """
        size = check_whole("size", size, "0 or more, and below 2**64")
        stream = check_whole("stream", stream, _STREAM)
        address = ctypes.c_void_p()
        code = self._library.c.tms_pool_malloc(self._handle, ctypes.byref(address), size, stream)
        self._check(code, f"allocating {size} bytes from a pool of kind {self.kind!r}")
        return address.value or 0

    def free(self, address: int) -> None:
        """Takes back an allocation of `malloc`; ignores 0.

        Raises:
            TmsError: it is not the address of a live allocation of this pool.
            TypeError, ValueError: it is no address.
        """
        address = check_whole("address", address, _ADDRESS)
        self._check(self._library.c.tms_pool_free(self._handle, address), f"freeing {address:#x}")

    def record_stream(self, address: int, stream: int) -> None:
        """Notes that another stream uses an allocation, which is not reused before that is done.

        Raises:
            NotSupportedError: the kind is not "caching".
            TmsError, TypeError, ValueError: as for `free`.
        """
        address = check_whole("address", address, _ADDRESS)
        stream = check_whole("stream", stream, _STREAM)
        code = self._library.c.tms_pool_record_stream(self._handle, address, stream)
        self._check(code, f"recording a stream for {address:#x}")

    def trim(self) -> int:
        """Gives segments in which nothing is live back to the device, and returns their bytes."""
        released = ctypes.c_size_t()
        code = self._library.c.tms_pool_trim(self._handle, ctypes.byref(released))
        self._check(code, "trimming a pool")
        return released.value

    def stats(self) -> dict[str, Any]:
        """The pool's counters and sizes: "live_bytes", "reserved_bytes", "segments" and others."""
        text = read(self._library.c.tms_pool_stats_json, self._handle)
        if not text:
            self._check(1, "reading a pool's statistics")
        return cast("dict[str, Any]", json.loads(text))

    def snapshot(self) -> list[dict[str, Any]]:
        """The segments by address, with what every byte is used for, as torch.cuda.memory_snapshot.

        A segment has "address", "total_size", "allocated_size", "active_size", "requested_size",
        "stream", "segment_type" and "blocks"; a block has "address", "size", "requested_size" and
        "state". Sizes are in bytes.
        """
        text = read(self._library.c.tms_pool_snapshot_json, self._handle)
        if not text:
            self._check(1, "taking a snapshot of a pool")
        return cast("list[dict[str, Any]]", json.loads(text))

    def reset_peak_stats(self) -> None:
        """Sets the peaks in `stats` to the current values (torch.cuda.reset_peak_memory_stats)."""
        self._check(
            self._library.c.tms_pool_reset_peak_stats(self._handle), "resetting a pool's peaks"
        )

    def close(self) -> None:
        """Gives all segments back, with all live allocations. A second call does nothing."""
        if not self._closed:
            self._check(self._library.c.tms_pool_destroy(self._handle), "closing a pool")
            self._closed = True

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self, code: int, doing: str) -> None:
        if code == 1 and self._closed:
            cause = self._library.last_error
            raise TmsError(f"{doing} failed: the pool is closed.", code=code, cause=cause)
        _check(self._library, code, doing)


_ADDRESS = "what malloc returned"
_STREAM = "a cudaStream_t, such as torch.cuda.Stream.cuda_stream"


def use_allocator(kind: str, **options: Option) -> None:
    """Makes a pool PyTorch's allocator of CUDA memory, for the whole process, from here on.

    Call it before PyTorch makes its first CUDA tensor: PyTorch can't change its allocator later
    (for a part of a program there is `allocator`). Tensors made in a `region` are pausable, others
    are not. Whatever the kind, streams share no memory, and CUDA graphs have their own.
    torch.cuda.empty_cache and set_per_process_memory_fraction work. torch.cuda.memory_stats covers
    only PyTorch's own allocator: see `allocator_stats`. Lack of memory is a RuntimeError that
    begins "CUDA out of memory", not a torch.OutOfMemoryError.

    Args:
        kind, options: as for `pool`. The choice holds for the life of the process.

    Raises:
        NotSupportedError: PyTorch uses CUDA already, has another allocator, is older than 2.6, or
            cannot raise an error when memory is short.
        TmsError: the kind or an option does not exist, or another was chosen before.
        NotPreloadedError, ImportError: there is no libtms.so in the process, or no PyTorch.
    """
    chosen = _kind(kind), _text(options)
    library = load()
    torch = _pytorch()
    if torch.cuda.is_initialized():
        raise NotSupportedError(
            "PyTorch uses CUDA in this process already, and can't change its allocator any more. "
            "Call tms.use_allocator before the first CUDA tensor, or make tensors within "
            "tms.allocator(...)."
        )
    made = _plug(library, torch, "tms_torch_pool_malloc_or_throw", chosen)
    try:
        torch.cuda.memory.change_current_allocator(
            private(torch, "cuda.memory._CUDAAllocator")(made)
        )
    except RuntimeError as error:
        raise NotSupportedError(f"PyTorch refuses another allocator: {error}") from error
    _torch.serve_all()


def allocator(kind: str, **options: Option) -> Scope:
    """Serves the CUDA tensors that this thread makes in the body from a pool.

    It is a context manager and a decorator, like `region`. PyTorch's own allocator still places
    tensors, in a `torch.cuda.MemPool` of the body's, and the pool makes its segments. These are
    pausable inside a `region`. A region entered in the body works as always.

    Args:
        kind, options: as for `use_allocator`.

    Raises:
        NotSupportedError: there is no CUDA device for PyTorch, or its allocator has no memory pools
            (PyTorch before 2.8, or after `use_allocator`).
        TmsError, NotPreloadedError, ImportError: as for `use_allocator`.
    """

    chosen = _kind(kind), _text(options)

    def route(library: Library) -> _torch.Route:
        made = _plug(library, _pytorch(), "tms_torch_pool_malloc", chosen)
        settings = (library.tag, library.backup, library.incremental)
        tag = library.tag if library.active else None
        return _torch.enter_own(("allocator", settings if tag else None), made, tag)

    return ThreadScope(f"tms.allocator({kind!r})", route)


def allocator_stats() -> list[dict[str, Any]]:
    """Returns figures of the pools that serve PyTorch under `use_allocator` or `allocator`.

    There is one dict for each device and tag: "device", "tag" (None: not pausable) and "stats", as
    `Pool.stats` returns them.
    """
    return cast("list[dict[str, Any]]", json.loads(read(load().c.tms_torch_pool_stats_json)))


def allocator_snapshot() -> list[dict[str, Any]]:
    """Returns the use of the memory of the pools that serve PyTorch under `use_allocator`.

    There is one dict for each device and tag: "device", "tag" (None: not pausable) and "segments",
    as `Pool.snapshot` returns them.
    """
    return cast("list[dict[str, Any]]", json.loads(read(load().c.tms_torch_pool_snapshot_json)))


def reset_allocator_peak_stats() -> None:
    """Sets the peaks in `allocator_stats` to the current values."""
    library = load()
    _check(library, library.c.tms_torch_pool_reset_peak_stats(), "resetting the allocator's peaks")


def _check(library: Library, code: int, doing: str) -> None:
    if code == 2:  # a pool's error itself says what to do
        cause = library.last_error
        raise OutOfMemoryError(f"{doing} failed: {cause} (cudaError 2).", code=code, cause=cause)
    if code:
        raise from_code(code, doing, library.last_error)


def _kind(kind: str) -> bytes:
    if not isinstance(kind, str):
        raise TypeError(
            f"kind must be the name of a kind of pool, such as 'caching', not {shown(kind)}"
        )
    return check_text("kind", kind)


def _text(options: dict[str, Option]) -> bytes:
    for name, value in options.items():
        if not isinstance(value, (bool, int, float, str)):
            raise TypeError(
                f"{name} must be a number, True, False or text such as '64MiB', not {value!r}"
            )
        if "," in re.sub(r"\[[^]]*\]", "", str(value)):
            raise ValueError(
                f"{name}={value!r}: a setting must not contain a comma outside brackets"
            )
    return ",".join(f"{name}={value}" for name, value in options.items()).encode()


def _pytorch() -> Any:
    torch = importlib.import_module("torch")
    if not hasattr(torch.cuda, "MemPool"):
        raise NotSupportedError(
            f"PyTorch {torch.__version__} is too old for another allocator. Use 2.6 or later."
        )
    if torch.cuda.get_allocator_backend() != "native":
        raise NotSupportedError(
            f"PyTorch's CUDA allocator is {torch.cuda.get_allocator_backend()!r} already; "
            "another can replace or complement only its own ('native')."
        )
    return torch


_plugged: dict[str, Any] = {}
"""PyTorch's objects for our functions, by the name of the allocating one; they are never freed."""


def _plug(library: Library, torch: Any, malloc: str, chosen: tuple[bytes, bytes]) -> Any:
    """PyTorch's allocator that the named function serves from pools of the chosen kind."""
    code = library.c.tms_torch_pool_use(*chosen)
    _check(library, code, f"choosing a pool of kind {chosen[0].decode()!r} for PyTorch")
    if malloc not in _plugged:
        made = private(torch, "_C._cuda_customAllocator")(
            library.address_of(malloc), library.address_of("tms_torch_pool_free")
        )
        for name, function in _SETTERS.items():
            setter(torch, made, name)(library.address_of(function))
        _plugged[malloc] = made
    return _plugged[malloc]


_SETTERS = {
    "set_init_fn": "tms_torch_pool_init",
    "set_reset_fn": "tms_torch_pool_reset",
    "set_memory_fraction_fn": "tms_torch_pool_memory_fraction",
    "set_record_stream_fn": "tms_torch_pool_record_stream",
    "set_begin_allocate_to_pool": "tms_torch_pool_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "tms_torch_pool_end_allocate_to_pool",
    "set_release_pool": "tms_torch_pool_release_pool",
}
