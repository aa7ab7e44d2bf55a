"""Which PyTorch memory pool serves a thread, over the stand-in for PyTorch.

gpu/ tests the real one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from simulator import HANGS
from threads import in_threads
from torches import stand_in

import tms
from tms import _torch
from tms._library import load

Id = tuple[int, int]


class Model:
    """What the tests see of PyTorch's pools."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.capturing = False
        self.emptied = 0
        self.snapshot: list[dict[str, object]] = []
        torch.cuda.is_current_stream_capturing = lambda: self.capturing
        torch.cuda.empty_cache = self.empty_cache
        torch.cuda.memory_snapshot = lambda: self.snapshot

    def empty_cache(self) -> None:
        self.emptied += 1

    def retired(self) -> set[Id]:
        """Pools that torch.cuda.empty_cache() releases, and that can no longer be begun."""
        uses = self.torch.cuda._memory.uses
        return {identity for (_, identity), count in uses.items() if count == 0}

    def serving(self, device: int = 0) -> Id | None:
        """The pool that serves this thread: the same, whether the first or the last one wins."""
        listed = self.torch.cuda._memory.listed[device]
        mine = [identity for identity, thread in listed if thread == threading.get_ident()]
        assert len(mine) <= 1
        return mine[0] if mine else None


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    for torch in stand_in(monkeypatch):
        model = Model(torch)
        yield model
        assert model.retired() == set() or model.emptied


def test_a_pool_per_tag_and_backup(model: Model) -> None:
    served: dict[tuple[str, str | None], Id] = {}
    for _ in range(2):
        for tag in ("weights", "cache"):
            for backup in (None, "host"):
                with tms.region(tag, backup=backup):
                    pool = model.serving()
                assert pool is not None
                assert served.setdefault((tag, backup), pool) == pool
        assert model.serving() is None
    assert len(set(served.values())) == 4


def test_nested(model: Model) -> None:
    with tms.region("outer"):
        outer = model.serving()
        with tms.region("inner"):
            inner = model.serving()
            assert inner not in (None, outer)
            with tms.region("outer"):
                assert model.serving() == outer
            assert model.serving() == inner
        assert model.serving() == outer
        with tms.region("outer"):
            assert model.serving() == outer
        assert model.serving() == outer
    assert model.serving() is None


def test_left_in_another_order(model: Model) -> None:
    """Scopes entered later are served as before, and each pool is available to the next region."""
    first, second = tms.region("first"), tms.region("second")
    first.__enter__()
    served = model.serving()
    second.__enter__()
    later = model.serving()
    with pytest.raises(RuntimeError, match="left before"):
        first.__exit__(None, None, None)
    assert model.serving() == later != served
    with tms.region("first"):
        assert model.serving() == served
    assert model.serving() == later
    second.__exit__(None, None, None)
    assert model.serving() is None


def test_disable_leaves_all_pools(model: Model) -> None:
    with tms.disable():
        assert model.serving() is None
    with tms.region("outer"), tms.region("inner"):
        inner = model.serving()
        with tms.disable():
            assert model.serving() is None
            with tms.region("within"):
                assert model.serving() not in (None, inner)
            assert model.serving() is None
        assert model.serving() == inner


@pytest.fixture
def all_pausable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with TMS_INIT_ENABLE: PyTorch's default pool holds pausable memory."""
    monkeypatch.setattr(load(), "active", True)


@pytest.mark.usefixtures("all_pausable")
def test_disable_where_everything_is_pausable(model: Model) -> None:
    """It needs a pool of its own."""
    with tms.disable():
        ordinary = model.serving()
        assert ordinary is not None
    with tms.region("weights"):
        weights = model.serving()
        assert weights not in (None, ordinary)
        with tms.disable():
            assert model.serving() == ordinary
        assert model.serving() == weights
    assert load().active
    assert model.serving() is None


def test_exceptions(model: Model) -> None:
    with pytest.raises(KeyError), tms.region("outer"):
        outer = model.serving()
        with pytest.raises(ZeroDivisionError), tms.region("inner"), tms.disable():
            raise ZeroDivisionError
        assert model.serving() == outer
        raise KeyError
    assert model.serving() is None


def test_threads_in_the_same_region(model: Model) -> None:
    """PyTorch refuses a pool to a second thread, so each gets its own, and they are reused."""
    both_inside = threading.Barrier(2, timeout=HANGS)
    served: list[Id | None] = []

    def work() -> None:
        with tms.region("shared"):
            both_inside.wait()
            served.append(model.serving())
            both_inside.wait()

    in_threads(work, work)
    assert None not in served
    assert len(set(served)) == 2
    with tms.region("shared"):
        assert model.serving() in served


def test_every_device(model: Model) -> None:
    """The current device may change inside a region; pools survive on each device."""
    for _ in range(3):
        with tms.region("weights"):
            first = model.serving(0)
            assert first is not None
            assert model.serving(1) == first
            model.torch.cuda.set_device(1)
            with tms.region("cache"):
                assert model.serving(0) == model.serving(1) != first
        model.torch.cuda.set_device(0)


def test_capture_keeps_the_graphs_pool(model: Model) -> None:
    with tms.region("outer"):
        outer = model.serving()
        model.capturing = True
        with tms.region("inner"), tms.disable():
            assert model.serving() == outer
        model.capturing = False
        assert model.serving() == outer


def test_before_pools_were_per_thread(model: Model) -> None:
    functions = model.torch._C
    functions._cuda_beginAllocateToPool = functions._cuda_beginAllocateCurrentThreadToPool
    functions._cuda_endAllocateCurrentStreamToPool = functions._cuda_endAllocateToPool
    del functions._cuda_beginAllocateCurrentThreadToPool
    del functions._cuda_endAllocateToPool
    with pytest.warns(RuntimeWarning, match="PyTorch 2.8"), tms.region("outer"):
        outer = model.serving()
        with tms.region("inner"):
            assert model.serving() not in (None, outer)
        assert model.serving() == outer


@pytest.mark.parametrize(
    "name",
    ["_cuda_beginAllocateCurrentThreadToPool", "_cuda_endAllocateToPool", "_cuda_releasePool"],
)
def test_a_pytorch_without_what_is_needed(name: str, model: Model) -> None:
    delattr(model.torch._C, name)
    with pytest.raises(tms.NotSupportedError, match="has no torch._C._cuda_.*2.6 to 2.11, 2.14"):
        tms.region("weights").__enter__()
    assert not load().active


@pytest.fixture
def expandable(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has made memory by handle."""
    monkeypatch.setattr(load().c, "tms_maps_memory", lambda: True)


@pytest.mark.usefixtures("expandable")
@pytest.mark.parametrize("key", ["segment_pool_id", "is_expandable", "active_size", "total_size"])
def test_a_pytorch_that_says_less_of_segments(key: str, model: Model) -> None:
    with tms.region("weights"):
        pass
    model.snapshot = [
        {"segment_pool_id": (0, 0), "total_size": 1, "active_size": 1, "is_expandable": False}
    ]
    del model.snapshot[0][key]
    with pytest.raises(tms.NotSupportedError, match=f"has no {key} in torch.cuda.memory_snapshot"):
        tms.empty_cache()


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments(variable: str, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """They require that the functions that PyTorch gets from the driver are ours."""
    monkeypatch.setenv(variable, "max_split_size_mb:512, expandable_segments:True")
    monkeypatch.setattr(load(), "interposes", False)
    with pytest.raises(tms.NotSupportedError, match=f"{variable} is .*Start the process with"):
        tms.region("weights").__enter__()
    monkeypatch.setattr(load(), "interposes", True)
    with tms.region("weights"):
        assert model.serving() is not None
    monkeypatch.setattr(load(), "interposes", False)
    monkeypatch.setenv(variable, "expandable_segments:False")
    with tms.region("weights"):
        assert model.serving() is not None


def test_exclude_wins_over_regions_within(model: Model) -> None:
    with tms.exclude(), tms.region("within"):
        assert model.serving() is None
    with tms.region("outer"):
        outer = model.serving()
        with tms.exclude():
            assert model.serving() is None
            with tms.region("within"), tms.disable(), tms.exclude():
                assert model.serving() is None
            with tms.region("within"):
                assert model.serving() is None
            assert model.serving() is None
        assert model.serving() == outer
        with tms.region("inner"):
            assert model.serving() not in (None, outer)


@pytest.mark.usefixtures("all_pausable")
def test_exclude_where_all_is_pausable(model: Model) -> None:
    with tms.exclude():
        plain = model.serving()
        assert plain is not None
        with tms.region("within"):
            assert model.serving() == plain
    assert model.serving() is None


def test_other_allocators(model: Model) -> None:
    cuda = model.torch.cuda
    cuda.get_allocator_backend = lambda: "cudaMallocAsync"
    with pytest.raises(tms.NotSupportedError, match="'cudaMallocAsync'.*Use the native one"):
        tms.region("weights").__enter__()
    del cuda.MemPool
    with pytest.raises(tms.NotSupportedError, match="PyTorch 2.6 or later"):
        tms.region("weights").__enter__()


def test_without_cuda(model: Model) -> None:
    torch = model.torch
    torch.cuda.is_available = lambda: False
    with tms.region("weights"), tms.disable():
        assert model.serving() is None
    del torch.cuda.is_available  # as while torch is being imported
    with tms.region("weights"), tms.disable():
        assert model.serving() is None


def test_empty_cache(model: Model) -> None:
    with tms.region("idle"):
        idle = model.serving()
    with tms.region("entered"):
        entered = model.serving()
        tms.empty_cache()
        assert model.retired() == {idle}
        assert model.serving() == entered
    assert model.emptied == 1
    with tms.region("entered"):
        assert model.serving() == entered
    with tms.region("idle"):
        assert model.serving() not in (None, idle)
    tms.empty_cache()
    assert len(model.retired()) == 3
    assert not any(model.torch.cuda._memory.uses.values())


@pytest.mark.usefixtures("expandable")
def test_empty_cache_with_expandable_segments(model: Model) -> None:
    """A pool of theirs can't be retired while it holds a tensor, in whatever order."""

    def segment(pool: Id | None, active: int, expandable: bool = True) -> dict[str, object]:
        return {
            "segment_pool_id": pool,
            "total_size": 2 << 20,
            "active_size": active,
            "is_expandable": expandable,
        }

    served = {}
    for tag in ("used", "free", "plain"):
        with tms.region(tag):
            served[tag] = model.serving()
    model.snapshot = [
        segment((0, 0), 5),
        segment(served["used"], 512),
        segment(served["used"], 0),
        segment(served["free"], 0),
        segment(served["plain"], 512, expandable=False),
    ]
    tms.empty_cache()
    assert model.retired() == {served["free"], served["plain"]}
    with tms.region("used"):
        assert model.serving() == served["used"]
    pools = _torch.region_pools()
    assert pools is not None
    ((pool,),) = pools.known().values()
    _torch.dispose(pool)  # idle and used
    assert served["used"] not in model.retired()
    with tms.region("used"):
        pools.drop(pool)  # entered and used
    assert served["used"] not in model.retired()
    with tms.region("used"):
        assert model.serving() == served["used"]
    model.snapshot = []
    tms.empty_cache()
    assert served["used"] in model.retired()
    assert pools.known() == {}


def test_resume_gives_back_what_pytorch_caches(model: Model) -> None:
    import cuda

    with tms.region("weights", backup="host"):
        pointer = cuda.malloc(64 * cuda.MiB)
    cuda.write(pointer, b"weights")
    tms.pause("weights")
    cached = [cuda.malloc(cuda.free_memory() - 4 * cuda.MiB)]
    torch = model.torch
    with pytest.raises(tms.OutOfMemoryError):
        tms.resume("weights")
    assert model.emptied == 1
    torch.cuda.empty_cache = lambda: cuda.free(cached.pop())
    tms.resume("weights")
    assert cached == []
    assert cuda.read(pointer, 7) == b"weights"
    cuda.free(pointer)


def test_a_region_while_its_tag_is_paused(model: Model) -> None:
    """What the pool from before has cached is paused."""
    with tms.region("weights"), tms.region("cache"):
        made = model.torch.full((2 << 20,), 1, dtype=model.torch.uint8, device="cuda")
    with tms.region("cache"):
        before = model.serving()
    tms.pause("cache")
    served = []
    for _ in range(2):
        with tms.region("cache"):
            served.append(model.serving())
            new = model.torch.full((2 << 20,), 2, dtype=model.torch.uint8, device="cuda")
    assert before not in served and len({*served}) == 1
    with tms.region("weights"):
        tms.pause("weights")  # it has none
    tms.pause("cache")  # now that pool's memory is paused, too
    with tms.region("cache"):
        assert model.serving() not in (before, *served)
    tms.resume("cache")
    with tms.region("cache"):
        assert model.serving() == before
    model.torch.cuda.empty_cache()  # one pool of those has been given up
    del made, new


def test_a_pause_within_a_region_of_its_tag(model: Model) -> None:
    with tms.region("cache"):
        made = model.torch.full((2 << 20,), 1, dtype=model.torch.uint8, device="cuda")
        before = model.serving()
        tms.pause("cache")
        assert model.serving() not in (None, before)
        with tms.disable():
            assert model.serving() is None
        tms.resume("cache")
    with tms.region("cache"):
        assert model.serving() == before
    del made


@pytest.mark.usefixtures("all_pausable")
def test_a_pause_where_everything_is_pausable(model: Model) -> None:
    """Outside all regions the default pool's cache is paused."""
    torch = model.torch
    made = torch.full((2 << 20,), 1, dtype=torch.uint8, device="cuda")
    assert model.serving() is None
    tms.pause()
    beside = model.serving()
    assert beside is not None
    with tms.region("weights"):
        assert model.serving() not in (None, beside)
    assert model.serving() == beside
    served: list[Id | None] = []
    empty_cache = torch.cuda.empty_cache
    torch.cuda.empty_cache = lambda: (served.append(model.serving()), empty_cache())
    tms.empty_cache()
    assert served == [None] and model.serving() == beside
    tms.resume()
    assert model.serving() is None
    del made


def test_a_pool_of_the_programs_own_is_as_outside_regions(model: Model) -> None:
    """It serves other tensors later."""
    cuda = model.torch.cuda
    own = cuda.MemPool()
    with tms.region("cache"):
        with pytest.warns(RuntimeWarning, match="MemPool takes from the device is not pausable"):
            used = cuda.use_mem_pool(own)
            used.__enter__()
        assert not load().active
        with tms.region("within"):
            assert model.serving() == own.id and not load().active
        used.__exit__(None, None, None)
        assert load().active
    with cuda.use_mem_pool(own), tms.region("cache"):
        assert model.serving() == own.id and not load().active


def test_a_pool_that_dies_while_a_region_is_entered_waits(model: Model) -> None:
    """Its end would abort the process."""
    died: list[bool] = []

    class Memory:
        def __del__(self) -> None:
            died.append(any(model.torch.cuda._memory.listed.values()))

    with tms.region("cache"):
        own = model.torch.cuda.MemPool()
        own.memory = Memory()
        del own
        with tms.region("within"):
            pass
        assert not died
    assert died == [False]
    own = model.torch.cuda.MemPool()
    own.memory = Memory()
    del own
    assert died == [False, False]


def test_leaving_asks_for_no_snapshot(model: Model) -> None:
    """A snapshot takes as long as there are tensors, and matters only to expandable segments."""

    def never() -> None:
        raise AssertionError("a snapshot")

    model.torch.cuda.memory_snapshot = never
    with tms.region("cache"):
        pass
    pools = _torch.region_pools()
    assert pools is not None
    ((pool,),) = pools.known().values()
    _torch.dispose(pool)
    tms.empty_cache()


def test_allocators_of_pools_that_need_a_context(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch 2.6 and 2.7 pass over a pool's own allocator without one."""
    monkeypatch.setattr(_torch, "_allocator", object())
    model.torch.cuda.MemPoolContext = object
    with pytest.raises(tms.NotSupportedError, match="2.8 or later"):
        tms.region("weights").__enter__()
    assert model.serving() is None


def test_an_allocator_of_pools_serves_every_device(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A MemPool has its allocator on one device only."""
    allocator = object()
    monkeypatch.setattr(_torch, "_allocator", allocator)
    with tms.region("weights"):
        served = [model.serving(device) for device in range(2)]
    assert len({*served}) == 2
    memory = model.torch.cuda._memory
    assert [memory.allocators[each] for each in served] == [allocator, allocator]
    with tms.region("weights"):
        assert [model.serving(device) for device in range(2)] == served
