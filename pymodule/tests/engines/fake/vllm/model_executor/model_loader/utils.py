from __future__ import annotations

from typing import Any

from layers import Attention, Method, Model

from vllm.model_executor.model_loader.reload import record_metadata_for_reloading


def initialize_model(*, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
    model = Model(model_config.hf_config)
    record_metadata_for_reloading(model)
    return model


def process_weights_after_loading(model: Any, model_config: Any, target_device: Any) -> None:
    for _, module in model.named_modules():
        if isinstance(getattr(module, "quant_method", None), Method):
            module.quant_method.process_weights_after_loading(module)
    for _, module in model.named_modules():
        if isinstance(module, Attention):
            module.process_weights_after_loading(model_config.dtype)
