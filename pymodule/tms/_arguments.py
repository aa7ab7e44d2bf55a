"""Checks of arguments: each names the argument, what was given, and what to give.

A public function makes them before anything else: a call with a wrong argument changes nothing.
"""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
import reprlib
from typing import Literal, Optional, cast

from ._warning import warn

Backup = Optional[
    Literal[
        Literal["host", "sparse", "disk", "peer"],
        Literal["peer:0", "peer:1", "peer:2", "peer:3", "peer:4", "peer:5", "peer:6", "peer:7"],
        Literal["peer:8", "peer:9", "peer:10", "peer:11"],
        Literal["peer:12", "peer:13", "peer:14", "peer:15"],
    ]
]
"""None, "host", "sparse", "disk", "peer" or "peer:N" with the ordinal of a device."""

_KIND = re.compile(r"host|sparse|disk|peer(:\d{1,2})?")


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 100


def shown(value: object) -> str:
    """Returns the value as text of an error, which is short."""
    return _REPR.repr(value)


def check_text(name: str, text: str) -> bytes:
    """Returns a text as the library takes it. Raises ValueError if it can't be that."""
    if "\0" in text:
        raise ValueError(f"{name} must not contain a NUL character: {shown(text)}")
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be text of UTF-8, not {shown(text)}") from None


def check_tag(tag: object, name: str = "tag", *, without: str = "all tags") -> str:
    """Returns `tag`. Raises TypeError or ValueError if it can't be a tag.

    Args:
        without: what a call without this argument is for.
    """
    if not isinstance(tag, str):
        raise TypeError(f"{name} must be a str such as 'weights', not {type(tag).__name__}")
    if not tag:
        raise ValueError(f"{name} must not be empty; leave it out for {without}")
    check_text(name, tag)
    return tag


def check_tags(tag: object, name: str = "tag") -> list[str] | None:
    """Returns a tag, or a list or tuple of them, as a list; None stays. Errors: as `check_tag`."""
    if tag is None:
        return None
    without = "all tags" if name == "tag" else "no tag"
    several = tag if isinstance(tag, (list, tuple)) else [tag]
    return [check_tag(one, name, without=without) for one in several]


def check_flag(name: str, flag: object) -> bool:
    """Returns `flag`. Raises TypeError if it is no bool."""
    if not isinstance(flag, bool):
        raise TypeError(f"{name} must be True or False, not {shown(flag)}")
    return flag


def check_seconds(name: str, seconds: object, *, above_zero: bool = False) -> float:
    """Returns `seconds`. Raises TypeError or ValueError if they are no time.

    Args:
        above_zero: whether they must be finite and above 0.
    """
    wanted = f"{name} must be a number of seconds{' above 0' if above_zero else ', 0 or more'}"
    if isinstance(seconds, bool) or not isinstance(seconds, numbers.Real):
        raise TypeError(f"{wanted}, not {shown(seconds)}")
    given = float(seconds)
    if not (given > 0 and math.isfinite(given) if above_zero else given >= 0):
        raise ValueError(f"{wanted}, not {shown(seconds)}")
    return given


def check_whole(name: str, number: object, wanted: str) -> int:
    """Returns a whole number from 0 to 2**64 - 1. Raises TypeError or ValueError if it is none.

    Args:
        wanted: says what it must be.
    """
    try:
        given = -1 if isinstance(number, bool) else operator.index(number)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} must be {wanted}, not {shown(number)}") from None
    if not 0 <= given < 1 << 64:
        raise ValueError(f"{name} must be {wanted}, not {shown(number)}")
    return given


def check_backup(backup: object) -> Backup:
    """Returns `backup`. Raises ValueError if it can't be a backup."""
    if backup is None or isinstance(backup, str) and _KIND.fullmatch(backup):
        return cast(Backup, backup)
    raise ValueError(
        f"backup must be None (a pause loses contents), 'host' (host memory keeps them), "
        f"'sparse' (host memory, without blocks of zeros), 'disk' (files), 'peer' (another GPU) or "
        f"'peer:N' (GPU number N), not {shown(backup)}"
    )


def check_incremental(incremental: object, backup: Backup) -> bool:
    """Returns `incremental`. Raises TypeError or ValueError if it is no bool or needs a backup."""
    if incremental is not True and incremental is not False:
        raise TypeError(f"incremental must be True, False or None, not {shown(incremental)}")
    if incremental and backup != "host":
        raise ValueError(f"incremental=True needs backup='host', not backup={shown(backup)}")
    return incremental


def switched_on(variable: str) -> bool:
    """Reports whether an environment variable is 1; other values than 1 and 0 warn, and are 0."""
    value = os.environ.get(variable, "").strip().lower()
    on, off = ("1", "true", "yes"), ("", "0", "false", "no")
    if value not in on + off:
        warn(f"{variable} is {value!r}, which is taken for 0: use 1 or 0")
    return value in on
