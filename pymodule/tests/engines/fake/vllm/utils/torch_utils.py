from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def set_default_torch_dtype(dtype: Any) -> Iterator[None]:
    yield
