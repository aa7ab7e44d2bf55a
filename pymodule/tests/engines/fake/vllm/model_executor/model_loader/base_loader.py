from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from vllm import __version__
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading


class BaseModelLoader(ABC):
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    if __version__ != "0.26.0":

        def get_external_weight_memory(self, vllm_config: Any) -> int:
            return 0

    @abstractmethod
    def download_model(self, model_config: Any) -> None: ...

    @abstractmethod
    def load_weights(self, model: Any, model_config: Any) -> None: ...

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        model = initialize_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        self.load_weights(model, model_config)
        process_weights_after_loading(model, model_config, torch.device("cuda"))
        return model.eval()
