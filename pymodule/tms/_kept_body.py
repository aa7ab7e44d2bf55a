"""Context managers that give up what they hold even where Ctrl-C loses the with statement."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Callable, TypeVar

_Given = TypeVar("_Given", covariant=True)


class _Exit:
    """The `__exit__` of a `Body`.

    A with statement looks it up before it enters, and holds what it got to its end. Ctrl-C can come
    when Python is about to call that, or has just called it. What the statement held goes even
    then, also where the program keeps the traceback, which has frames and not what they call.
    """

    def __get__(self, body: Body[Any] | None, owner: type) -> Callable[..., None]:
        if body is None:
            return _leave
        found = functools.partial(_leave, body)
        if not body.entered():
            body._held = weakref.ref(found, body._lost)
        return found


def _leave(body: Body[Any], *exception: object) -> None:
    try:
        try:
            body.leave(*exception)
        finally:
            body.give_up()
    finally:
        body.give_up()  # where an interruption has come before the other


class Body(contextlib.AbstractContextManager[_Given]):
    """A context manager whose `give_up` is called once its with statement has ended, however."""

    _held: object = None

    def entered(self) -> bool:
        """Whether there is something to give up."""
        raise NotImplementedError

    def leave(self, *exception: object) -> None:
        """What is to be done at the end of the body, before `give_up`."""

    def give_up(self) -> None:
        """Can be called again, and does nothing then."""
        raise NotImplementedError

    def _lost(self, _found: object) -> None:
        self._held = None
        self.give_up()

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self.give_up()  # entered by other means than a with statement

    if TYPE_CHECKING:

        def __exit__(self, *exception: object) -> None: ...
    else:
        __exit__ = _Exit()
