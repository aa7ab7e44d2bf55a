"""Hooks around sglang's load of a model, for TMS_SGLANG_KEPT=1 (tms._sglang): weights in a set.

sglang's --load-format takes none but its own names, so it stays as it is: "auto", say. Loaders
other than `DefaultModelLoader` are left alone.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
from pathlib import Path
from typing import Any, Callable

import torch

from . import _kept_model
from ._errors import NotSupportedError

_LOADER = "sglang.srt.model_loader.loader"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"

_SETTINGS = re.compile(
    "(enable|disable|moe|quant|fp[48]|json_model)_|.*(backend|_size|dtype|quant)"
)
"""Arguments of sglang that may change the layout of weights."""

_READ_ONLY = (
    "Weights of TMS_SGLANG_KEPT=1 are shared and cannot be written. Start the engine without it "
    "for updates of weights."
)

_logger = logging.getLogger("sglang.tms")


class _Run:
    """The load that goes on in this process, or the last one."""

    runner: Any = None
    found_bytes = 0
    shared = False


def hooks() -> dict[str, Callable[..., Any]]:
    """Returns a wrapper for each function's name."""
    updates = ("disk", "distributed", "tensor", "ipc")
    return {
        f"{_RUNNER}.load_model": _run,
        f"{_LOADER}.DefaultModelLoader.load_model": _load,
        **{f"{_UPDATER}.update_weights_from_{name}": _update for name in updates},
    }


def _run(original: Callable[..., Any], runner: Any, *arguments: Any, **named: Any) -> Any:
    _Run.runner, _Run.found_bytes = runner, 0
    done = original(runner, *arguments, **named)
    # The part of the device that is not for weights and cache is computed from this.
    runner.pre_model_load_memory += _Run.found_bytes / 2**30
    return done


def _load(
    original: Callable[..., Any], loader: Any, *, model_config: Any, device_config: Any
) -> Any:
    module = importlib.import_module(_LOADER)
    loaded = functools.partial(
        original, loader, model_config=model_config, device_config=device_config
    )
    if type(loader) is not module.DefaultModelLoader or _Run.runner is None:
        _logger.warning("tms: %s reads the checkpoint, and nothing is kept.", type(loader).__name__)
        return loaded()
    arguments = _Run.runner.server_args
    if "enable_memory_saver" not in vars(arguments):
        version = importlib.import_module("sglang").__version__
        raise NotSupportedError(
            f"TMS_SGLANG_KEPT=1 is for sglang 0.5.16 and 0.5.17, and this is {version}. Unset it."
        )

    def make() -> Any:
        quantization = module._get_quantization_config(model_config, loader.load_config)
        return module._initialize_model(model_config, loader.load_config, quantization)

    def process(model: Any) -> None:
        model.load_weights = lambda weights: None
        device = torch.device(device_config.device)
        loader.load_weights_and_postprocess(model, iter(()), device)
        del model.load_weights

    name = _name_of(loader.load_config, model_config, arguments)
    _Run.found_bytes = _kept_model.shared_bytes(name)
    with module.set_default_torch_dtype(model_config.dtype):
        model, shared = _kept_model.load(
            name,
            loaded=loaded,
            make=make,
            process=process,
            copy=False,
            sleeps=arguments.enable_memory_saver,
            option="TMS_SGLANG_KEPT=1",
            logger=_logger,
        )
    _Run.shared = _Run.shared or shared
    if shared:
        model.load_weights = _refuse
    return model


def _name_of(load_config: Any, model_config: Any, arguments: Any) -> str:
    world = torch.distributed
    hf = model_config.hf_config
    facts = [
        [importlib.import_module("sglang").__version__, torch.__version__, world.get_world_size()],
        [*_kept_model.state_of(model_config.model_path), getattr(hf, "_commit_hash", None)],
        [hf.to_dict(), model_config.dtype, model_config.quantization, arguments.revision],
        [str(load_config.load_format), load_config.model_loader_extra_config],
        [load_config.draft_model_idx, _Run.runner.is_draft_worker],
        {key: value for key, value in vars(arguments).items() if _SETTINGS.match(key)},
    ]
    return _kept_model.name_for(Path(model_config.model_path).name, world.get_rank(), facts)


def _update(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return (False, _READ_ONLY) if _Run.shared else original(*arguments, **named)


def _refuse(*_: Any, **__: Any) -> None:
    raise NotSupportedError(_READ_ONLY)
