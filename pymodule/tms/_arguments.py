"""Checks of what callers pass in."""

from __future__ import annotations

from typing import Literal, Optional

Backup = Optional[Literal["host", "disk"]]


def check_tag(tag: object) -> str:
    """`tag` itself; TypeError or ValueError where it can't be one."""
    if not isinstance(tag, str):
        raise TypeError(f"tag must be a str such as 'weights', not {type(tag).__name__}")
    if not tag:
        raise ValueError("tag must not be empty; leave it out to mean 'default'")
    if "\0" in tag:
        raise ValueError(f"tag must not contain a NUL character: {tag!r}")
    return tag


def check_backup(backup: object) -> Backup:
    """`backup` itself; ValueError where it can't be one."""
    if backup is None:
        return None
    if backup == "host":
        return "host"
    if backup == "disk":
        return "disk"
    raise ValueError(
        f"backup must be None (contents may go), 'host' (kept in host memory) or 'disk' (kept in "
        f"files), not {backup!r}"
    )
