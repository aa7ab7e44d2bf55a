"""Preloading libtms.so into child processes."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator

from ._errors import TmsError
from ._library import library_path


def configure_subprocess() -> contextlib._GeneratorContextManager[None]:
    """Starts the child processes of the body with libtms.so, by LD_PRELOAD in os.environ.

    LD_PRELOAD keeps what it names already, after libtms.so. Leaving the body, even by an exception,
    restores the variable exactly. It reaches children that inherit os.environ while the body runs:
    subprocess, multiprocessing with the "spawn" method (a "forkserver" only if it starts in the
    body; a forked child is its parent's copy and loads nothing).

    Raises:
        LibraryNotFoundError: there is no libtms.so, see `library_path`.
        TmsError: its path has a space or a colon in it, which LD_PRELOAD can't express.
    """
    return preloading(library_path)


@contextlib.contextmanager
def preloading(locate: Callable[[], str]) -> Iterator[None]:
    """`configure_subprocess` for the library under the name that `locate` gives it."""
    path = locate()
    if re.search(r"[\s:]", path):
        raise TmsError(
            f"LD_PRELOAD takes no path with a space or a colon, such as {path!r}. "
            "Copy or link the file elsewhere and set TMS_LIBRARY to it."
        )
    others = [each for each in re.split(r"[\s:]+", os.environ.get("LD_PRELOAD", "")) if each]
    kept = [entry for entry in others if os.path.realpath(entry) != os.path.realpath(path)]
    with change_env("LD_PRELOAD", ":".join([path, *kept])):
        yield


@contextlib.contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Sets os.environ[key] to `value` in the body, and restores it when no other body is left.

    Bodies may overlap, in several threads: the variable has the value of the one that was entered
    last among those that are not left yet, and in the end what it had before the first.
    """
    mine: list[str | None] = [value]
    with _changing:
        entered = _entered.setdefault(key, [[os.environ.get(key)]])
        entered.append(mine)
        os.environ[key] = value
    try:
        yield
    finally:
        with _changing:
            entered.remove(mine)  # or one that is equal
            (now,) = entered[-1]
            if now is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = now
            if len(entered) == 1:
                del _entered[key]


_changing = threading.RLock()
_entered: dict[str, list[list[str | None]]] = {}
"""By variable: its value before, then those of the bodies that are not left yet."""
