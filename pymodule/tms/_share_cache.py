"""An engine's KV cache under `tms run --share`: a pause drops it while it is unused."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

from ._control import stats
from ._errors import TmsError
from ._library import load


class Cache:
    """The `tensors()` of a cache with one reader, which `forget()` tells that they were lost.

    `forget()` returns False if the reader still has blocks of it.
    """

    def __init__(self, tensors: Callable[[], Any], forget: Callable[[], Any]) -> None:
        self._tensors, self._forget = tensors, forget
        self._unused: tuple[int, list[Any]] | None = None  # moves before, storages

    def unused(self) -> None:
        """The next pause keeps no contents."""
        if self._unused is None:
            self._unused = _moves(), _storages(self._tensors())
            _mark(self._unused[1], live=False)

    def used(self) -> None:
        """A request may come. Contents count again, and if a pause has lost them, forgets them.

        Raises:
            TmsError: they are lost, and the reader has not forgotten them.
        """
        if self._unused is not None:
            moves, storages = self._unused
            _mark(storages, live=True)
            if moves != _moves() and self._forget() is False:
                raise TmsError(
                    "A pause has dropped the KV cache while no request used it, and the engine "
                    "has not forgotten it: answers from it would be wrong. Start the engine again."
                )
            self._unused = None  # only now: a caller that goes on after an error comes here again


def _mark(storages: list[Any], *, live: bool) -> None:
    """Says whether there are contents. What is paused refuses: its pause ended the mark."""
    for part in storages:
        whole = (ctypes.c_size_t * 2)(0, part.nbytes())  # a tms_range
        load().c.tms_live(part.data_ptr(), part.nbytes(), whole, int(live))


def _storages(tensors: Any) -> list[Any]:
    if hasattr(tensors, "untyped_storage"):
        return [tensors.untyped_storage()]
    return [part for each in tensors for part in _storages(each)]


def _moves() -> int:
    """How often something was paused or resumed."""
    return sum(d["pauses"]["count"] + d["resumes"]["count"] for d in stats()["devices"])
