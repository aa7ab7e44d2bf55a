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
from ._arguments import switched_on
from ._errors import NotSupportedError, TmsError
from .distributed import meeting_of_engine

_LOADER = "sglang.srt.model_loader.loader"
_RUNNER = "sglang.srt.model_executor.model_runner.ModelRunner"
_UPDATER = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"
_SESSION = "sglang.srt.managers.scheduler_components.weight_updater"

_SETTINGS = re.compile(
    "(enable|disable|enforce|moe|quant|fp[48]|json_model|ep|init_expert|kt|dcp|rl|paged_experts|"
    "mm_enable|language)_|encoder_only|model_impl|.*(backend|_size|dtype|quant)"
)
"""Arguments of sglang that may change weights, or their layout."""

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
    path = ""  # of the checkpoint, without those of drafts
    mover: Any = None  # moves the weights of the draft, too


def hooks() -> dict[str, Callable[..., Any]]:
    """Returns a wrapper for each function's name."""
    around: dict[str, Callable[..., Any]] = {
        f"{_RUNNER}.load_model": _run,
        f"{_LOADER}.DefaultModelLoader.load_model": _load,
        f"{_UPDATER}.update_weights_from_disk": _from_disk,
        f"{_UPDATER}.update_weights_from_tensor": _update,
        f"{_UPDATER}.update_weights_from_ipc": _update,
    }
    if not _has_sessions():
        return {**around, f"{_UPDATER}.update_weights_from_distributed": _update}
    return {
        **around,
        f"{_UPDATER}.load_weights_from_distributed": _update,
        f"{_SESSION}.SchedulerWeightUpdaterManager.begin_weight_update": _begin,
        f"{_LOADER}.DefaultModelLoader.initialize_model_for_startup": _overlap,
    }


def _has_sessions() -> bool:
    """Reports whether updates of weights come in sessions, as in 0.5.23, which writes first."""
    module, _, name = _UPDATER.rpartition(".")
    try:
        updater = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # sglang says so for each hook, and keeps the others
        return False
    return hasattr(updater, "begin_weight_update")


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
    arguments = _arguments(_Run.runner.server_args)
    if arguments.get("enable_eplb"):
        raise NotSupportedError(
            "TMS_SGLANG_KEPT=1 cannot be combined with --enable-eplb, which writes weights. Leave "
            "out one of the two."
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
            sleeps=arguments["enable_memory_saver"],
            option="TMS_SGLANG_KEPT=1",
            trained=switched_on("TMS_SGLANG_TRAINED"),
            ask="TMS_SGLANG_TRAINED=1",
            logger=_logger,
        )
    _Run.shared = _Run.shared or shared
    if not _Run.runner.is_draft_worker:
        _Run.path = model_config.model_path
    if shared:
        model.load_weights = _refuse
    return model


def _arguments(given: Any) -> dict[str, Any]:
    """sglang's arguments as they are in force."""
    found: dict[str, Any] = dict(vars(given))
    try:
        if "enable_memory_saver" not in found:
            # 0.5.23 keeps what was asked for in them, and what it has decided elsewhere
            context = importlib.import_module("sglang.srt.runtime_context").get_context()
            found = context.resolved_server_args_dict()
        for name in ("enable_memory_saver", "revision"):
            if name not in found:
                raise AttributeError(f"its arguments have no {name!r}")
    except (ImportError, AttributeError) as error:
        version = importlib.import_module("sglang").__version__
        raise NotSupportedError(
            "TMS_SGLANG_KEPT=1 is for sglang 0.5.16, 0.5.17 and 0.5.23, and this is "
            f"{version}: {error}. Unset it."
        ) from error
    return found


def _name_of(load_config: Any, model_config: Any, arguments: dict[str, Any]) -> str:
    world = torch.distributed
    hf = model_config.hf_config
    facts = [
        [importlib.import_module("sglang").__version__, torch.__version__, world.get_world_size()],
        [*_kept_model.state_of(model_config.model_path), getattr(hf, "_commit_hash", None)],
        [hf.to_dict(), model_config.dtype, model_config.quantization, arguments["revision"]],
        [str(load_config.load_format), load_config.model_loader_extra_config],
        [load_config.draft_model_idx, _Run.runner.is_draft_worker],
        {key: value for key, value in arguments.items() if _SETTINGS.match(key)},
    ]
    return _kept_model.name_for(Path(model_config.model_path).name, world.get_rank(), facts)


def _update(original: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return (False, _READ_ONLY) if _Run.shared else original(*arguments, **named)


def _from_disk(
    original: Callable[..., Any],
    updater: Any,
    model_path: str,
    load_format: str,
    *rest: Any,
    **named: Any,
) -> Any:
    """Maps a version of the set where the load format asks for that: see `_MOVES`."""
    if load_format not in _MOVES:
        return _update(original, updater, model_path, load_format, *rest, **named)
    if _Run.shared and model_path != _Run.path:
        # sglang takes the format of the last update for one that names none.
        return False, (
            f"The load format {load_format!r} maps a version of this engine's set, whose path "
            f"is {_Run.path!r}, and reads nothing of {model_path!r}."
        )
    _Run.mover = _Run.mover or updater
    if updater is not _Run.mover:
        return True, "The weights have moved with those of the other model."
    operation, keeps = _MOVES[load_format]
    try:
        workers = torch.distributed.get_world_size()
        version = _kept_model.move(operation, keeps, meeting_of_engine("sglang", workers))
    except TmsError as error:
        return False, str(error)
    return True, f"The weights are version {version} of the set."


_MOVES = {"tms": ("advance", False), "tms-keep": ("advance", True), "tms-back": ("back", False)}
"""What a load format of an update asks for, and whether the version before is kept."""


def _begin(original: Callable[..., Any], manager: Any, recv_req: Any) -> Any:
    """Refuses a session of updates, whose beginning alone unpacks weights in place."""
    if not _Run.shared:
        return original(manager, recv_req)
    torch.distributed.barrier(group=manager.tp_cpu_group)  # a rank without a set may have begun
    messages: Any = importlib.import_module("sglang.srt.managers.io_struct")
    return messages.BeginWeightUpdateReqOutput(success=False, message=_READ_ONLY)


def _overlap(original: Callable[..., Any], loader: Any, *arguments: Any, **named: Any) -> Any:
    _logger.warning("tms: --startup-weight-load-mode overlap keeps nothing.")
    return original(loader, *arguments, **named)


def _refuse(*_: Any, **__: Any) -> None:
    raise NotSupportedError(_READ_ONLY)
