from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang.srt.model_loader import loader


class ModelRunner:
    def __init__(self, server_args: Any, model_config: Any, layered: bool = False) -> None:
        self.server_args = server_args
        self.model_config = model_config
        self.is_draft_worker = False
        self.pre_model_load_memory = torch.cuda.mem_get_info()[0] / 2**30
        self.layered = layered
        self.load_model()

    def load_model(self) -> None:
        kind = loader.LayeredModelLoader if self.layered else loader.DefaultModelLoader
        config = SimpleNamespace(
            load_format="auto", model_loader_extra_config={}, draft_model_idx=None
        )
        self.model = kind(config).load_model(
            model_config=self.model_config, device_config=SimpleNamespace(device="cuda")
        )
