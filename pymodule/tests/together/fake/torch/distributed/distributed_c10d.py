"""Where the default group's store is."""

from __future__ import annotations

from typing import Any

default_store: Any = None


def _get_default_store() -> Any:
    return default_store
