"""The figures of tms.stats() for tags, on all devices."""

from __future__ import annotations

from typing import Any

import tms


def entries(tag: str | None = None) -> list[tms.TagStats]:
    """Those of one tag, or of all."""
    every = [entry for device in tms.stats()["devices"] for entry in device["tags"]]
    return [entry for entry in every if tag in (None, entry["tag"])]


def total(figure: str, tag: str | None = None) -> int:
    figures: list[Any] = list(entries(tag))
    return sum(entry[figure] for entry in figures)
