from __future__ import annotations

from typing import Any

from vllm.model_executor.model_loader.base_loader import BaseModelLoader

read: list[str] = []
"""The loads of checkpoints."""


class DefaultModelLoader(BaseModelLoader):
    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        if load_config.model_loader_extra_config.keys() - {"num_threads"}:
            raise ValueError("Unexpected extra config keys")

    def download_model(self, model_config: Any) -> None: ...

    def get_all_weights(self, model_config: Any, model: Any) -> Any:
        return 3

    def load_weights(self, model: Any, model_config: Any) -> None:
        read.append(model_config.model)
        model.load_weights(self.get_all_weights(model_config, model))
        if model_config.hf_config.strays:
            import torch

            model.hidden = type("Kernel", (), {"scale": torch.filled(1, 4)})()


_LOAD_FORMAT_TO_MODEL_LOADER: dict[str, Any] = {
    "auto": DefaultModelLoader,
    "fastsafetensors": DefaultModelLoader,
}


def register_model_loader(load_format: str) -> Any:
    def _wrapper(model_loader_cls: Any) -> Any:
        assert issubclass(model_loader_cls, BaseModelLoader)
        _LOAD_FORMAT_TO_MODEL_LOADER[load_format] = model_loader_cls
        return model_loader_cls

    return _wrapper


def get_model_loader(load_config: Any) -> Any:
    return _LOAD_FORMAT_TO_MODEL_LOADER[load_config.load_format](load_config)
