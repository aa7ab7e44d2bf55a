"""What every test on the GPU starts from and leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

import tms


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Releases what PyTorch caches, and resumes what a test left paused."""
    yield
    gc.collect()
    tms.empty_cache()
    tms.resume()


@pytest.fixture
def tag(request: pytest.FixtureRequest) -> str:
    """A tag of the test's own, and so memory pools."""
    name: str = request.node.name
    return name
