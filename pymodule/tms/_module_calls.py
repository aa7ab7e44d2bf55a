"""Calls of PyTorch's modules, seen from outside the modules.

What sees them stands in `torch.nn.Module.__call__` for a while. It is no hook of the modules: hooks
belong to a module's state, which copies and pickles take along; PyTorch runs hooks that the program
has prepended before them, and no hook after a KeyboardInterrupt.
"""

from __future__ import annotations

import sys
import threading
from typing import Any, Callable

Call = Callable[..., Any]

Around = Callable[[Call, Any, "tuple[Any, ...]", "dict[str, Any]"], Any]
"""Is given PyTorch's own function, a module, and what that is called with; it makes the call."""

_changes = threading.RLock()  # a signal handler may come in between


def surround(find: Callable[[], Around | None]) -> Callable[[], None]:
    """Has calls of all modules go through what `find` returns, until it returns None.

    Returns what ends this at once; else the first call after that does.
    """
    modules = sys.modules["torch"].nn.Module
    compiling = getattr(getattr(sys.modules["torch"], "compiler", None), "is_compiling", bool)

    def __call__(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if compiling():  # what torch.compile traces is no call
            return before(self, *arguments, **keywords)
        around = find()
        if around is not None:
            return around(before, self, arguments, keywords)
        end()
        return before(self, *arguments, **keywords)

    def end() -> None:
        # Where something else stands in front by now, a call after that has gone does this. And a
        # forked child may find the lock taken for ever.
        if _changes.acquire(blocking=False):
            try:
                if modules.__call__ is __call__:
                    modules.__call__ = before
            finally:
                _changes.release()

    with _changes:
        before = modules.__call__
        modules.__call__ = __call__
    return end


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
