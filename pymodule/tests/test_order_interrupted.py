"""Calls of modules during a resume in an order, which a signal cuts off anywhere."""

from __future__ import annotations

import gc
import os
import sys
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
    """The library, of which an order is in progress whose memory is back; counts who is let in."""

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


def interrupted_at(n: int, call: Any) -> bool:
    """Reports whether KeyboardInterrupt came, at the nth step of this package's code."""
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
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


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
