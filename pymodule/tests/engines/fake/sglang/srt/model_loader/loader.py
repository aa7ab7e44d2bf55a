from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from layers import Model

import sglang

read: list[str] = []
"""The loads of checkpoints."""


@contextlib.contextmanager
def set_default_torch_dtype(dtype: Any) -> Iterator[None]:
    yield


def _get_quantization_config(model_config: Any, load_config: Any) -> Any:
    return None


def _initialize_model(model_config: Any, load_config: Any, quant_config: Any = None) -> Any:
    return Model(model_config.hf_config)


class DefaultModelLoader:
    def __init__(self, load_config: Any) -> None:
        self.load_config = load_config

    def load_model(self, *, model_config: Any, device_config: Any) -> Any:
        model = _initialize_model(model_config, self.load_config)
        read.append(model_config.model_path)
        device = torch.device(device_config.device)
        self.load_weights_and_postprocess(model, iter([3]), device)
        return model.eval()

    if sglang.__version__ == "0.5.23":

        def initialize_model_for_startup(self, *, model_config: Any, device_config: Any) -> Any:
            return _initialize_model(model_config, self.load_config)

    @staticmethod
    def load_weights_and_postprocess(model: Any, weights: Any, target_device: Any) -> None:
        model.load_weights(weights)
        for _, module in model.named_modules():
            quant_method = getattr(module, "quant_method", None)
            if quant_method is not None:
                quant_method.process_weights_after_loading(module)


class LayeredModelLoader(DefaultModelLoader):
    pass
