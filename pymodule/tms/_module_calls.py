"""Calls of PyTorch's modules, seen from outside the modules.

What sees them stands in `torch.nn.Module.__call__` for a while. It is no hook of the modules: hooks
belong to a module's state, which copies and pickles take along; PyTorch runs hooks that the program
has prepended before them, and no hook after a KeyboardInterrupt.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from typing import Any, Callable

Call = Callable[..., Any]

Around = Callable[..., Any]
"""Is given PyTorch's own function, a module, and what that is called with; it makes the call."""

_finds: dict[int, Callable[[], Around | None]] = {}
"""What has been given to `surround`, until it ends. One operation of the dict adds or removes it,
because a signal handler may come in between any two."""

_numbers = itertools.count()
_changes = threading.RLock()  # a handler takes it, too


def surround(find: Callable[[], Around | None]) -> Callable[[], None]:
    """Has calls of all modules go through what `find` returns, until it returns None.

    Returns what ends this at once; else the first call after that does, or the next `surround`. It
    keeps `find` until then, so `find` must hold no module.
    """
    number = next(_numbers)

    def end() -> None:
        _finds.pop(number, None)
        leave_if_over()

    _found()  # drops what is over, where no module has been called since
    _finds[number] = find
    _stand()
    return end


def _found() -> list[Around]:
    """What calls go through now."""
    found = []
    for number in list(_finds):
        find = _finds.get(number)
        around = None if find is None else find()
        if around is None:
            _finds.pop(number, None)
        else:
            found.append(around)
    return found


class _Front:
    """A function in `torch.nn.Module.__call__`. All of them have calls go through the same."""

    def __init__(self, modules: Any) -> None:
        self.modules, self.before = modules, modules.__call__
        before = self.before
        compiling = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", bool)

        def __call__(module: Any, /, *arguments: Any, **keywords: Any) -> Any:
            if compiling():  # what torch.compile traces is no call
                return before(module, *arguments, **keywords)
            call = before
            for around in _found():
                call = functools.partial(around, call)
            if call is before:
                self.leave()
            return call(module, *arguments, **keywords)

        self.call = __call__

    def leave(self) -> None:
        """Puts back what was there, unless calls are to go through something.

        Where something else stands in front by now, a call after that has gone does this. And a
        forked child may find the lock taken for ever.
        """
        if _changes.acquire(blocking=False):
            try:
                if not _finds and self.modules.__call__ is self.call:
                    self.modules.__call__ = self.before
                    if _finds:  # of a handler, which has found the function still there
                        _stand()
            finally:
                _changes.release()


_front: _Front | None = None
"""The last."""


def _stand() -> None:
    """Puts a function into `torch.nn.Module.__call__`, unless one is there.

    A handler may do so between any two steps here. What is then overwritten is not missed.
    """
    global _front
    modules = sys.modules["torch"].nn.Module
    with _changes:
        if _front is None or modules.__call__ is not _front.call:
            front = _Front(modules)
            _front = front
            modules.__call__ = front.call


def leave_if_over() -> None:
    """Ends what is over, where no module has been called since."""
    if _front is not None and not _found():
        _front.leave()


def is_module(each: object) -> bool:
    """Reports whether something is a torch.nn.Module, also where there is no PyTorch."""
    modules = getattr(getattr(sys.modules.get("torch"), "nn", None), "Module", None)
    return modules is not None and isinstance(each, modules)


def runs_as_one(module: Any) -> bool:
    """Reports whether a module may use memory of modules in it without a call of theirs.

    Compiled code calls none of them. Data-parallel modules read parameters or buffers of all before
    the first.
    """
    return getattr(module, "_compiled_call_impl", None) is not None or any(
        base.__name__ in _AS_ONE for base in type(module).__mro__
    )


_AS_ONE = {
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "OptimizedModule",
    "ScriptModule",
}
"""By name, because PyTorch imports the modules that have them late."""
