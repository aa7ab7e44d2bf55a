"""How far a pause or resume has come: a callback, or bars."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Iterator
from typing import Any, Callable, Union

from ._errors import NotSupportedError
from ._functions import PROGRESS
from ._library import Library

Progress = Union[bool, Callable[[int, str, int, int], object]]
"""True: bars on stderr; or a function of device, "pause" or "resume", bytes done, total bytes."""

_lock = threading.Lock()  # the library has one callback per process
_thread = threading.local()


@contextlib.contextmanager
def reported(library: Library, progress: Progress) -> Iterator[None]:
    """Reports what the body's operation copies.

    Raises:
        ImportError: progress is True and there is no tqdm.
        NotSupportedError: this thread is in such a function, for which the operation waits.
        TypeError: progress is neither a bool nor a function of four arguments.
    """
    if progress is False:
        yield
        return
    if progress is not True and not callable(progress):
        raise TypeError(f"{_WANTED}, not {progress!r}")
    if progress is not True and not _takes_reports(progress):
        raise TypeError(f"{_WANTED}; {progress!r} cannot be called so")
    if getattr(_thread, "reporting", False):
        raise NotSupportedError(
            "A progress function must not pause or resume: the operation that calls it waits for "
            "it. Do so when that has returned.",
            code=801,
        )
    with _lock, contextlib.ExitStack() as bars:
        report = _bars(bars) if progress is True else progress

        def callback(device: int, operation: bytes, done: int, total: int, user: object) -> None:
            _thread.reporting = True
            try:
                report(device, operation.decode(), done, total)
            finally:
                _thread.reporting = False

        kept = PROGRESS(callback)  # alive until no more calls can come
        library.c.tms_set_progress_callback(kept, None)
        try:
            yield
        finally:
            library.c.tms_set_progress_callback(PROGRESS(), None)


_WANTED = "progress must be True, False or a function (device, operation, done, total)"


def _takes_reports(progress: Callable[..., object]) -> bool:
    try:
        inspect.signature(progress).bind(0, "pause", 0, 0)
    except TypeError:
        return False
    except ValueError:  # no signature is known, as for some C functions
        pass
    return True


def _bars(stack: contextlib.ExitStack) -> Callable[[int, str, int, int], None]:
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError(
            "progress=True draws its bars with tqdm: pip install tqdm, or pass a function "
            "(device, operation, done, total) instead"
        ) from error
    bars: dict[int, Any] = {}

    def report(device: int, operation: str, done: int, total: int) -> None:
        if device not in bars:
            bars[device] = stack.enter_context(
                tqdm(
                    desc=f"{operation} GPU {device}",
                    total=total,
                    unit="B",
                    unit_scale=True,
                    unit_divisor=1024,
                    position=len(bars),
                )
            )
        bars[device].update(done - bars[device].n)

    return report
