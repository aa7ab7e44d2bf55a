"""Of sglang 0.5.23: updates of weights come in sessions."""

from __future__ import annotations

from typing import Any

from sglang.srt.managers.io_struct import BeginWeightUpdateReqOutput


class SchedulerWeightUpdaterManager:
    tp_cpu_group = None

    def begin_weight_update(self, recv_req: Any) -> BeginWeightUpdateReqOutput:
        return BeginWeightUpdateReqOutput(success=True, message="Success")
