from __future__ import annotations

from typing import Any

from layers import Attention, Method, Model

from vllm import __version__
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading


def initialize_model(*, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
    model = Model(model_config.hf_config)
    record_metadata_for_reloading(model)
    return model


if __version__ != "0.26.0":
    retied: list[bool] = []
    """Whether each checkpoint's own head was equal to its embeddings."""

    def maybe_retie_word_embeddings(model: Any, model_config: Any) -> None:
        if model_config.hf_config.own_head is None:
            return
        for _ in model.named_modules():
            pass
        head, embedding = (model._parameters[name].bytes()[:4] for name in ("head", "embedding"))
        retied.append(head == embedding)
        if retied[-1]:
            model._parameters["head"] = model._parameters["embedding"]


def process_weights_after_loading(model: Any, model_config: Any, target_device: Any) -> None:
    if __version__ != "0.26.0":
        maybe_retie_word_embeddings(model, model_config)
    for _, module in model.named_modules():
        if isinstance(getattr(module, "quant_method", None), Method):
            module.quant_method.process_weights_after_loading(module)
    for _, module in model.named_modules():
        if isinstance(module, Attention):
            module.process_weights_after_loading(model_config.dtype)
