"""A model with layers that change when their weights are there, as quantized ones do."""

from __future__ import annotations

import importlib
from typing import Any

import torch

WIDTH = 256 << 10


class Method:
    """Repacks a layer's weights, and takes its scale from the checkpoint."""

    def process_weights_after_loading(self, layer: Any) -> None:
        (value,) = set(layer._parameters["weight"].bytes())
        layer._parameters["weight"] = torch.nn.Parameter(
            torch.filled(value + 1, 2, WIDTH // 2), requires_grad=False
        )
        layer.workspace = torch.filled(0, 64, dtype=torch.int32)
        layer.factor = float(set(layer._buffers["scale"].bytes()).pop())
        layer.on_host = torch.filled(value, 8, device="cpu")
        del layer._parameters["dropped"]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        importlib.import_module("tables")  # for the first time while a model is made
        self._parameters["weight"] = torch.nn.Parameter(torch.empty(WIDTH))
        self._parameters["weight"].weight_loader = "of the layer"
        self._parameters["dropped"] = torch.nn.Parameter(torch.empty(WIDTH))
        self._buffers["scale"] = torch.empty(1)
        self.quant_method = Method()


class Attention(torch.nn.Module):
    """Derives something from the weights of the layer below."""

    def __init__(self) -> None:
        super().__init__()
        self._modules["projection"] = Layer()
        self.impl: Any = None

    def process_weights_after_loading(self, dtype: Any) -> None:
        (value,) = set(self._modules["projection"]._parameters["weight"].bytes())
        self.derived = [torch.filled(value + 1, 16)]


class Model(torch.nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        for number in range(3):
            self._modules[str(number)] = Layer() if number else Attention()
        self._parameters["embedding"] = torch.nn.Parameter(torch.empty(WIDTH))
        self._parameters["head"] = self._parameters["embedding"]
        self._own_head = getattr(config, "own_head", None)
        if self._own_head is not None:
            self._parameters["head"] = torch.nn.Parameter(torch.empty(WIDTH))
        self._modules["0"].impl = [self._parameters["embedding"]]
        if config.wide:
            self._parameters["more"] = torch.nn.Parameter(torch.empty(1))

    def load_weights(self, weights: Any) -> None:
        first = weights if isinstance(weights, int) else next(weights)
        for value, module in enumerate(self.modules()):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                tensor.fill_(first + value)
        if self._own_head is not None:
            self._parameters["head"].fill_(first + self._own_head)
        self.flag = True
