"""Calls of modules during a resume in an order, which a signal cuts off anywhere."""

from __future__ import annotations

import gc
import os
import sys
import weakref
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import tms
from tms import _order
from tms._library import load

OURS = os.path.dirname(tms.__file__)


class Base:  # torch.nn.Module
    def __init__(self, *inside: Base) -> None:
        self.inside = inside

    def __call__(self) -> None:
        for module in self.inside:
            module()

    def modules(self) -> list[Base]:
        return [self, *self.inside]

    children = parameters = buffers = lambda self, **_: []  # noqa: E731


PLAIN = Base.__call__


@pytest.fixture(autouse=True)
def torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(nn=SimpleNamespace(Module=Base)))


class Enters:
    """Stands in for the library during an order. It counts the threads that are let in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.let_in, self.most, self.over, c = 0, 0, False, load().c
        monkeypatch.setattr(c, "tms_order_enter", self.enter)
        monkeypatch.setattr(c, "tms_order_leave", self.leave)
        monkeypatch.setattr(c, "tms_order_is_over", lambda _number: self.over)

    def enter(self, _number: object, _step: int) -> int:
        self.let_in += 1
        self.most = max(self.most, self.let_in)
        return 0

    def leave(self, _number: object) -> None:
        self.let_in -= 1


def interrupt() -> None:
    raise KeyboardInterrupt


def interrupted_at(n: int, call: Any, handler: Any = interrupt) -> bool:
    """Reports whether a handler ran, at the nth step of this package's code, or has raised."""
    left = n

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "opcode"):
            left -= 1
            if left == 0:
                sys.settrace(None)
                handler()
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return left <= 0


@pytest.mark.parametrize("module", [Base(), Base(Base())], ids=["one", "nested"])
def test_an_interruption_lets_no_thread_in(monkeypatch: pytest.MonkeyPatch, module: Base) -> None:
    """As Ctrl-C, which Python raises in the main thread between any two steps of its code."""
    enters = Enters(monkeypatch)
    _order.Order(module.modules()).begin()
    n = 1
    while interrupted_at(n, module):
        assert enters.let_in == 0, n
        n += 1
    assert n > 50
    assert enters.most == len(module.modules())
    assert enters.let_in == 0
    enters.over = True
    module()
    assert Base.__call__ is PLAIN


def test_an_interruption_ends_what_is_noted() -> None:
    model = Base(Base())

    def notes() -> None:
        with tms.first_runs(model):
            pass

    n = 1
    while interrupted_at(n, notes):
        gc.collect()
        model()
        assert Base.__call__ is PLAIN, n
        n += 1
    assert n > 20


def test_something_else_stands_in_front_at_the_end() -> None:
    """As a tracer of torch.fx does."""
    model = Base()
    with tms.first_runs(model) as order:
        noting = Base.__call__
        Base.__call__ = lambda self: noting(self)  # type: ignore[method-assign]
        model()
    assert order == [model]
    model()
    Base.__call__ = noting  # type: ignore[method-assign]
    model()
    assert Base.__call__ is PLAIN


@pytest.mark.parametrize("ends", [False, True], ids=["begins", "ends"])
def test_a_handler_begins_an_order_anywhere(monkeypatch: pytest.MonkeyPatch, ends: bool) -> None:
    """While the thread that it interrupts begins an order, or ends what is over."""
    enters = Enters(monkeypatch)
    mine, of_handler = Base(), Base()

    def handler() -> None:
        enters.over = False
        _order.Order([of_handler]).begin()

    n, came = 1, True
    while came:
        enters.over = False
        interrupted = _order.Order([mine]).begin
        if ends:
            interrupted()
            enters.over, interrupted = True, mine
        came = interrupted_at(n, interrupted, handler)
        of_handler()
        assert bool(enters.most) == came, n
        if not ends:
            enters.most = 0
            mine()
            assert enters.most, n
        enters.most = 0
        enters.over = True
        mine()
        assert Base.__call__ is PLAIN, n
        n += 1
    assert n > 20


def test_orders_without_a_call_of_a_module_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a program that replays CUDA graphs alone, and wakes with an order each time."""
    enters = Enters(monkeypatch)
    models = []
    for _ in range(2 * sys.getrecursionlimit()):
        model = Base(Base())
        models.append(weakref.ref(model))
        enters.over = False
        _order.Order([*model.modules()]).begin()
        enters.over = True
        del model
    gc.collect()
    assert not any(model() for model in models)
    assert Base.__call__ is not PLAIN
    Base(Base())()
    assert Base.__call__ is PLAIN


def test_a_resume_ends_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    enters = Enters(monkeypatch)
    _order.Order([Base()]).begin()
    tms.resume([])
    assert Base.__call__ is not PLAIN
    enters.over = True
    tms.resume([])
    assert Base.__call__ is PLAIN
