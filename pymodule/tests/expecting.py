"""pytest.raises for programs that tests start: to import pytest takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises(kind: type[BaseException], *words: str) -> Iterator[None]:
    """The body must raise such an error, with all of these words."""
    try:
        yield
    except kind as error:
        assert all(each in str(error) for each in words), error
    else:
        raise AssertionError(f"no {kind.__name__}")
