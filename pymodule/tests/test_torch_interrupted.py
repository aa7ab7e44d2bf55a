"""Regions that a signal, a finalizer or the end of their thread cuts off, over the stand-in."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from torches import stand_in

import tms
from tms import _scope, _torch
from tms._library import load

OURS = os.path.dirname(tms.__file__)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from stand_in(monkeypatch)


def inside(torch: Any) -> tuple[object, ...]:
    """What this thread has entered, as the library, this package and PyTorch know it."""
    listed = [one for pools in torch.cuda._memory.listed.values() for one in pools]
    return load().active, len(_scope._thread.frames), len(_torch._thread.routes), listed


class Nth:
    """Does something at the nth line or call of this package's code."""

    def __init__(self, n: int, act: Any) -> None:
        self.left, self.act = n, act

    def __enter__(self) -> Nth:
        sys.settrace(self.trace)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(None)

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event in ("call", "line"):
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                self.act()
        return self.trace


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("within", [False, True])
def test_an_interruption_anywhere_leaves_the_region(torch: Any, within: bool) -> None:
    """As Ctrl-C, which Python raises in the main thread between any two steps of its code."""
    with tms.region("inner"), tms.region("outer"):
        pass
    outer = tms.region("outer")
    if within:
        outer.__enter__()
    before, n, interrupted = inside(torch), 0, True
    while interrupted:
        n += 1
        interrupted = False
        try:
            with Nth(n, interrupt), tms.region("inner", backup="host"):
                pass
        except KeyboardInterrupt:
            interrupted = True
        assert inside(torch) == before, n
        with tms.region("inner", backup="host"):
            assert inside(torch) != before
        assert inside(torch) == before, n
    assert n > 50
    if within:
        outer.__exit__(None, None, None)


def test_a_handler_that_uses_regions_interrupts_nothing(torch: Any) -> None:
    """As a signal handler, or a finalizer that Python's collector runs, on the same thread."""

    def handler() -> None:
        tms.empty_cache()
        with tms.region("inner"):
            pass

    before, n, reached = inside(torch), 0, True
    while reached:
        n += 1
        with Nth(n, handler) as watch:
            with tms.region("inner"):
                entered = inside(torch)
            assert entered[0] and len(entered[3]) == torch.cuda.device_count(), n
        reached = watch.left <= 0
        assert inside(torch) == before, n
    assert n > 50


def test_a_thread_that_ends_in_a_region_takes_its_pool_along(torch: Any) -> None:
    """PyTorch tells threads by numbers that later threads get again."""
    before = inside(torch)
    thread = threading.Thread(target=lambda: tms.region("a").__enter__())
    thread.start()
    thread.join()
    assert inside(torch) == before
    pools = _torch.region_pools()
    assert pools is not None
    ((pool,),) = pools.known().values()
    assert pool.owner is None
    with tms.region("a"):
        assert pool.owner is not None
