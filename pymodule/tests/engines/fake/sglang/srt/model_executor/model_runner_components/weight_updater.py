from __future__ import annotations

from typing import Any

import sglang


class WeightUpdater:
    def update_weights_from_disk(
        self,
        model_path: str,
        load_format: str,
        weight_name_filter: Any = None,
        recapture_cuda_graph: bool = False,
    ) -> tuple[bool, str]:
        return True, "Succeeded to update model weights."

    if sglang.__version__ == "0.5.23":

        def begin_weight_update(self) -> None: ...

        def load_weights_from_distributed(self, named_tensors: Any) -> tuple[bool, str]:
            return True, "Succeeded to update parameter online."

    else:

        def update_weights_from_distributed(
            self, names: Any, dtypes: Any, shapes: Any, group_name: str, load_format: Any = None
        ) -> Any: ...

    def update_weights_from_tensor(self, named_tensors: Any, load_format: Any = None) -> Any: ...

    def update_weights_from_ipc(self, recv_req: Any) -> Any: ...
