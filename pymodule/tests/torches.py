"""The stand-in for PyTorch of dropin/fake, in the tests' own process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tms import _torch

FAKE = Path(__file__).resolve().parent / "dropin" / "fake"


def _loaded() -> list[str]:
    return [name for name in sys.modules if name == "torch" or name.startswith("torch.")]


def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a `torch` that is as new, and that tms has not seen."""
    for name in _loaded():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.setattr(_torch, "_pools", None)
    import torch

    try:
        yield torch
        assert not any(torch.cuda._memory.listed.values())
    finally:
        for name in _loaded():
            del sys.modules[name]
