"""Pools from Python, and as the allocator of PyTorch (a model of it).

gpu/ tests the real PyTorch.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Iterator
from typing import Any

import children
import cuda
import pytest
from torches import stand_in

import tms
from tms import _library, _pool, _torch

MiB = cuda.MiB
SMALL = {
    "naive": {},
    "freelist": {"buffer": "64MiB"},
    "buddy": {"capacity": "64MiB"},
    "slab": {"capacity": "64MiB"},
    "caching": {"max_split_size": 40 * MiB, "memory_fraction": 0.9},
    "bfc": {"garbage_collection": True},
    "paddle": {"max_chunk": 64 * MiB},
}
KINDS = pytest.mark.parametrize("kind", SMALL)


@KINDS
def test_outside_regions(kind: str) -> None:
    before = cuda.free_memory()
    with tms.pool(kind, **SMALL[kind]) as pool:
        assert cuda.free_memory() == before
        blocks = {pool.malloc(size): bytes([size % 251]) * size for size in (100, 70000, 3 * MiB)}
        for address, contents in blocks.items():
            cuda.write(address, contents)
        with tms.paused():
            for address, contents in blocks.items():
                assert cuda.read(address, len(contents)) == contents
        stats = pool.stats()
        assert stats["kind"] == kind
        assert stats["blocks"] == 3
        assert stats["requested_bytes"] == 70100 + 3 * MiB
        for address in blocks:
            pool.free(address)
        assert pool.stats()["peak_requested_bytes"] == 70100 + 3 * MiB
        pool.reset_peak_stats()
        assert pool.stats()["peak_requested_bytes"] == 0
        held = before - cuda.free_memory()
        assert pool.trim() == held
        assert cuda.free_memory() == before
        assert pool.malloc(0) == 0
        pool.free(0)
        pool.malloc(MiB)
    assert cuda.free_memory() == before
    pool.close()


@KINDS
@pytest.mark.parametrize("memory", ["pinned", "host"])
def test_host_memory(kind: str, memory: str) -> None:
    before = cuda.free_memory()
    with tms.region("pool"):
        pool = tms.pool(kind, memory=memory, **SMALL[kind])
    address = pool.malloc(3 * MiB)
    ctypes.memset(address, 7, 3 * MiB)
    tms.pause("pool")
    assert cuda.free_memory() == before
    assert ctypes.string_at(address, 3 * MiB) == bytes([7]) * 3 * MiB
    tms.resume("pool")
    pool.free(address)
    held = pool.stats()["reserved_bytes"]
    assert pool.trim() == held
    with pytest.raises(tms.OutOfMemoryError):
        pool.malloc(1 << 56)
    pool.close()


@pytest.mark.parametrize("kind", ["bfc", "caching", "slab"])
def test_snapshot(kind: str) -> None:
    """It has the fields of torch.cuda.memory_snapshot, and every byte of each segment once."""
    options = {"capacity": 64 * MiB} if kind == "slab" else {}
    with tms.pool(kind, **options) as pool:
        address = pool.malloc(700)
        segments = pool.snapshot()
        used = [
            (block["address"], block["requested_size"])
            for segment in segments
            for block in segment["blocks"]
            if block["state"] == "active_allocated"
        ]
        assert used == [(address, 700)]
        assert sum(segment["total_size"] for segment in segments) == pool.stats()["reserved_bytes"]
        for segment in segments:
            sizes = [block["size"] for block in segment["blocks"]]
            assert sum(sizes) == segment["total_size"]
        pool.free(address)
    with pytest.raises(tms.TmsError, match="closed"):
        pool.snapshot()


def test_a_closed_pool() -> None:
    with tms.pool("caching") as pool:
        pass
    with pytest.raises(tms.TmsError, match="closed"):
        pool.stats()


def test_rounding_as_pytorch_writes_it() -> None:
    with tms.pool("caching", roundup_power2_divisions="[1:2,4:8,>:1]") as pool:
        pool.malloc(1 * MiB + 1)
        assert pool.stats()["live_bytes"] == 3 * MiB // 2


def test_errors() -> None:
    with pytest.raises(tms.TmsError, match="'heap'.*there are naive, .*paddle"):
        tms.pool("heap")
    with pytest.raises(tms.TmsError, match="no option sise"):
        tms.pool("bfc", sise=1)
    with pytest.raises(tms.TmsError, match='memory="disk": give device, pinned or host'):
        tms.pool("bfc", memory="disk")
    with pytest.raises(ValueError, match="comma"):
        tms.pool("bfc", memory_limit="1,2")
    with pytest.raises(tms.TmsError) as raised:
        tms.pool("bfc", device=9)
    assert raised.value.code == 101
    pool = tms.pool("bfc")
    with pytest.raises(ValueError, match="size must be"):
        pool.malloc(-1)
    with pytest.raises(tms.OutOfMemoryError, match="allocating"):
        pool.malloc(1 << 40)
    address = pool.malloc(1000)
    with pytest.raises(tms.TmsError, match="not the start of a live block"):
        pool.free(address + 4)
    with pytest.raises(tms.NotSupportedError, match="ignores streams"):
        pool.record_stream(address, 1)
    pool.close()
    for call in (lambda: pool.malloc(1), lambda: pool.free(address), pool.trim, pool.stats):
        with pytest.raises(tms.TmsError, match="the pool is closed.$") as raised:
            call()
        assert raised.value.cause == "the pool was destroyed"
    with tms.pool("naive") as pool, pytest.raises(tms.OutOfMemoryError) as short:
        pool.malloc(3 * MiB)
        pool.malloc(1 << 40)
    assert str(short.value).lower().count("free something") == 1
    assert "blocks in use: the largest has 3.00 MiB, 1 from 2.00 MiB (3.00 MiB)" in str(short.value)
    assert "empty_cache" not in str(short.value)


def test_not_preloaded() -> None:
    code = """
    import tms
    from expecting import raises
    for call in (lambda: tms.pool("bfc"), lambda: tms.use_allocator("bfc"), tms.allocator_stats,
                 lambda: tms.allocator("bfc").__enter__()):
        with raises(tms.NotPreloadedError):
            call()
    """
    children.output(code, preloaded=False)


class Plugged:
    """CUDAPluggableAllocator: functions by address, called with PyTorch's types."""

    lacking = ""
    """The name of a function that does not exist."""

    def __init__(self, malloc: int, free: int) -> None:
        pointer, size, number = ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
        self.malloc = ctypes.CFUNCTYPE(pointer, size, number, pointer)(malloc)
        self.free = ctypes.CFUNCTYPE(None, pointer, size, number, pointer)(free)
        self.given: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_") or self.lacking and name.startswith(self.lacking):
            raise AttributeError(name)
        return lambda address: self.given.__setitem__(name, address)


class Model:
    """What PyTorch is asked for."""

    def __init__(self, torch: Any) -> None:
        self.memory = torch.cuda._memory
        self.current: Plugged | None = None
        self.initialized = False
        self.backend = "native"
        torch.cuda.get_allocator_backend = lambda: self.backend
        torch.cuda.is_initialized = lambda: self.initialized
        torch.cuda.memory.change_current_allocator = self.change
        torch.cuda.memory._CUDAAllocator = lambda of: types.SimpleNamespace(_allocator=of)
        torch._C._cuda_customAllocator = Plugged

    def change(self, allocator: Any) -> None:
        if self.initialized:
            raise RuntimeError("Can't swap an already initialized allocator")
        self.current = allocator._allocator
        self.backend = "pluggable"

    def pools(self) -> list[Plugged | None]:
        """The allocator of each pool."""
        return list(self.memory.allocators.values())

    def is_serving(self) -> bool:
        return self.memory.serving(0) is not None

    def serving(self) -> Any:
        """The allocator of the pool that serves this thread."""
        return self.memory.allocators[self.memory.serving(0)]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.setattr(_torch, "_serves_all", False)
    monkeypatch.setattr(_pool, "_plugged", {})
    # The choice of a kind holds for a process's life, so all of these tests share one.
    for torch in stand_in(monkeypatch):
        yield Model(torch)


def test_a_pytorch_without_what_is_needed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = sys.modules["torch"]
    with monkeypatch.context() as less:
        less.delattr(torch._C, "_cuda_customAllocator")
        with pytest.raises(tms.NotSupportedError, match="no torch._C._cuda_customAllocator"):
            tms.use_allocator("caching")
    with monkeypatch.context() as less:
        less.delattr(torch.cuda.memory, "_CUDAAllocator")
        with pytest.raises(tms.NotSupportedError, match="no torch.cuda.memory._CUDAAllocator"):
            tms.use_allocator("caching")
    _pool._plugged.clear()
    with monkeypatch.context() as less:
        less.setattr(Plugged, "lacking", "set_record_stream_fn")
        with pytest.raises(tms.NotSupportedError, match="no set_record_stream_fn for allocators"):
            tms.use_allocator("caching")
    assert model.current is None


def test_use_allocator(model: Model) -> None:
    tms.use_allocator("caching")
    plugged = model.current
    assert plugged is not None
    assert len(set(plugged.given.values())) == 7 == len(plugged.given)
    plain = plugged.malloc(MiB, 0, None)
    assert plain
    with tms.region("model", backup="host"):
        assert not model.is_serving()
        kept = plugged.malloc(3 * MiB, 0, None)
    cuda.write(kept, b"kept")
    cuda.write(plain, b"plain")
    entries = {entry["tag"]: entry for entry in tms.allocator_stats()}
    assert entries[None]["stats"]["requested_bytes"] >= MiB
    assert entries["model"]["stats"]["requested_bytes"] == 3 * MiB
    (segment,) = (
        segment
        for entry in tms.allocator_snapshot()
        if entry["tag"] == "model"
        for segment in entry["segments"]
    )
    assert segment["requested_size"] == 3 * MiB
    before = cuda.free_memory()
    with tms.paused("model"):
        assert cuda.free_memory() > before
        assert cuda.read(plain, 5) == b"plain"
    assert cuda.read(kept, 4) == b"kept"
    plugged.free(kept, 3 * MiB, 0, None)
    plugged.free(plain, MiB, 0, None)
    ctypes.CFUNCTYPE(None)(plugged.given["set_reset_fn"])()
    assert sum(entry["stats"]["reserved_bytes"] for entry in tms.allocator_stats()) == 0
    assert sum(entry["stats"]["peak_reserved_bytes"] for entry in tms.allocator_stats()) > 0
    tms.reset_allocator_peak_stats()
    assert sum(entry["stats"]["peak_reserved_bytes"] for entry in tms.allocator_stats()) == 0
    with pytest.raises(tms.NotSupportedError, match="'pluggable' already"):
        tms.use_allocator("caching")


def test_use_allocator_too_late(model: Model) -> None:
    model.initialized = True
    with pytest.raises(tms.NotSupportedError, match="before the first CUDA tensor.*tms.allocator"):
        tms.use_allocator("caching")


def test_use_allocator_refused_by_pytorch(model: Model) -> None:
    def refuse(allocator: object) -> None:
        raise RuntimeError("Can't swap")

    sys.modules["torch"].cuda.memory.change_current_allocator = refuse
    with pytest.raises(tms.NotSupportedError, match="Can't swap"):
        tms.use_allocator("caching")
    with tms.region("after"):
        assert model.is_serving()  # regions are served as before


def test_one_kind_for_a_process(model: Model) -> None:
    tms.use_allocator("caching")
    model.backend = "native"
    with pytest.raises(tms.TmsError, match="uses caching for PyTorch already"):
        tms.use_allocator("bfc")
    del sys.modules["torch"].cuda.MemPool
    with pytest.raises(tms.NotSupportedError, match="too old"):
        tms.use_allocator("caching")


def test_allocator(model: Model) -> None:
    model.initialized = True
    with tms.allocator("caching"):
        outside = model.serving()
        assert outside is not None
        with tms.region("inner"):
            assert model.serving() is None  # a pool of cudaMalloc's
        with tms.disable():
            assert not model.is_serving()
        assert model.serving() is outside
    with tms.allocator("caching"):
        assert model.serving() is outside
    assert model.pools().count(outside) == 2  # one for each device
    with tms.region("outer"), tms.allocator("caching"):
        block = model.serving().malloc(MiB, 0, None)
        assert model.pools().count(outside) == 4  # MemPools of the region's
    before = cuda.free_memory()
    with tms.paused("outer"):
        assert cuda.free_memory() == before + 2 * MiB
    outside.free(block, MiB, 0, None)
    _library.load().c.tms_torch_pool_reset()  # other files' tests would see its cache
    assert cuda.free_memory() == before + 2 * MiB
    sys.modules["torch"].cuda.is_available = lambda: False
    with pytest.raises(tms.NotSupportedError, match="no CUDA device"):
        tms.allocator("caching").__enter__()


def test_numbers_that_are_no_sizes_and_no_addresses() -> None:
    with tms.pool("caching") as pool:
        for size in (-1, 1 << 64, (1 << 64) + 4096):
            with pytest.raises(ValueError, match="size must be 0 or more, and below 2"):
                pool.malloc(size)
        for address in (-1, 1 << 64):
            with pytest.raises(ValueError, match="address must be what malloc returned"):
                pool.free(address)
