"""A pause by pid of what PyTorch caches: given back first, or saved with its pool."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from caches import EXPANDABLE, KINDS, saves
from device import torch_on_gpu

torch_on_gpu()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pause_by_pid(kind: str, tmp_path: Path) -> None:
    saves(kind, sys.executable, tmp_path)


@pytest.mark.parametrize("kind", ["default", "graph", "pool"])
def test_with_expandable_segments(kind: str, tmp_path: Path) -> None:
    saves(kind, sys.executable, tmp_path, EXPANDABLE)
