from __future__ import annotations

from typing import NamedTuple


class BeginWeightUpdateReqOutput(NamedTuple):
    success: bool
    message: str
