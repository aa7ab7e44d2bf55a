"""vLLM's load format "tms", for its workers alone to import (tms._vllm): `--load-format tms`."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.model_executor.model_loader import get_model_loader, register_model_loader, utils
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    record_metadata_for_reloading,
)
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.utils.torch_utils import set_default_torch_dtype

from . import _kept_model
from ._errors import NotSupportedError
from .distributed import meeting_of_engine

NAME = "tms"

_TOGETHER = ("fastsafetensors", "instanttensor", "runai_streamer", "runai_streamer_sharded")
"""With these formats all ranks read together: the others would wait for a rank that has its set."""

_logger = logging.getLogger("vllm.tms")


class Loader(BaseModelLoader):  # type: ignore[misc]
    """Attaches the model that an earlier engine has published, or loads and publishes it.

    `model_loader_extra_config` may have "load_format", of the loader that reads the checkpoint
    ("auto"), "name", for the sets, "copy": each engine has weights of its own, which can be
    written, and "trained": the engine serves what a trainer has written. The rest is for the loader
    that reads the checkpoint.

    Each rank decides alone.
    """

    def __init__(self, load_config: Any) -> None:
        super().__init__(load_config)
        extra = dict(load_config.model_loader_extra_config or {})
        self._name = extra.pop("name", "")
        self._copy = extra.pop("copy", False)
        self._trained = extra.pop("trained", False)
        load_format = extra.pop("load_format", "auto")
        flags = (self._copy, self._trained)
        if not isinstance(self._name, str) or not all(isinstance(one, bool) for one in flags):
            raise ValueError(
                'model_loader_extra_config: "name" is a string, and "copy" and "trained" are true '
                "or false"
            )
        if load_format == NAME:
            raise ValueError('model_loader_extra_config: "load_format" names the other loader')
        self._inner_config = dataclasses.replace(
            load_config, load_format=load_format, model_loader_extra_config=extra
        )
        self._inner = get_model_loader(self._inner_config)

    def download_model(self, model_config: Any) -> None:
        self._inner.download_model(model_config)

    def load_weights(self, model: Any, model_config: Any) -> None:
        self._inner.load_weights(model, model_config)

    def get_all_weights(self, model_config: Any, model: Any) -> Any:
        """For vLLM's reload_weights, which calls it first."""
        if not self._copy:
            raise NotSupportedError(_READ_ONLY)
        return self._inner.get_all_weights(model_config, model)

    def get_external_weight_memory(self, vllm_config: Any) -> int:
        """Bytes of weights that are on the device before the load, and that it will share."""
        if self._copy:
            return 0
        draft = getattr(vllm_config.speculative_config, "draft_model_config", None)
        configs = filter(None, (vllm_config.model_config, draft))
        return sum(_kept_model.shared_bytes(self._name_of(vllm_config, one)) for one in configs)

    def load_model(self, vllm_config: Any, model_config: Any, prefix: str = "") -> Any:
        self._check(vllm_config)
        device = torch.device(self.load_config.device or vllm_config.device_config.device)
        arguments = {"vllm_config": vllm_config, "model_config": model_config, "prefix": prefix}

        def make() -> Any:
            model = initialize_model(**arguments)
            with device:  # on which a reload makes memory
                record_metadata_for_reloading(model)
            return model

        with set_default_torch_dtype(model_config.dtype):
            model, shared = _kept_model.load(
                self._name_of(vllm_config, model_config),
                loaded=functools.partial(self._inner.load_model, **arguments),
                make=make,
                process=functools.partial(_prepare, model_config=model_config, device=device),
                copy=self._copy,
                sleeps=vllm_config.model_config.enable_sleep_mode,
                option="--load-format tms",
                trained=self._trained,
                ask="--model-loader-extra-config '{\"trained\": true}'",
                logger=_logger,
            )
        if shared:
            model.load_weights = functools.partial(_refuse, model, model_config)
        return model

    def _check(self, vllm_config: Any) -> None:
        model, parallel = vllm_config.model_config, vllm_config.parallel_config
        if parallel.world_size > 1 and self._inner_config.load_format in _TOGETHER:
            raise NotSupportedError(
                f"--load-format tms cannot be combined with {self._inner_config.load_format!r} on "
                "several GPUs: with it all ranks read together, and the others would wait for "
                'a rank that has its set already. Use "auto".'
            )
        for setting in _WRITERS:
            asked = any(getattr(one, setting, None) for one in (vllm_config, model, parallel))
            if asked and not self._copy:
                raise NotSupportedError(
                    f"--load-format tms cannot be combined with {setting}, which writes weights; "
                    f"{_COPY}"
                )
        if model.enable_sleep_mode and model.sleep_mode_backend != NAME and not self._copy:
            raise NotSupportedError(
                "--load-format tms needs tms for sleep mode too: vLLM's own allocator would leave "
                "the weights on the device (--sleep-mode-backend tms, or TMS_VLLM=1)."
            )

    def _name_of(self, vllm_config: Any, model_config: Any) -> str:
        parallel, hf = vllm_config.parallel_config, model_config.hf_config
        shape = [getattr(hf, name, None) for name in ("architectures", "num_hidden_layers")]
        facts: list[Any] = [shape, parallel.world_size]
        if not self._name:
            facts += [
                [vllm.__version__, torch.__version__, *_kept_model.state_of(model_config.model)],
                [model_config.revision, getattr(hf, "_commit_hash", None), hf.to_dict()],
                [model_config.dtype, model_config.quantization],
                [getattr(model_config, "quantization_config", None), bool(vllm_config.lora_config)],
                [vllm_config.cache_config.cache_dtype, getattr(vllm_config, "kernel_config", None)],
                [getattr(parallel, name, None) for name in _PARALLEL],
                [self._inner_config.load_format, self._inner_config.model_loader_extra_config],
                {key: value for key, value in os.environ.items() if _KERNELS.match(key)},
            ]
        label = self._name or Path(model_config.model).name
        return _kept_model.name_for(label, parallel.rank, facts)


_WRITERS = ("enable_eplb", "weight_transfer_config", "sleep_preserve_parameter_names")
_PARALLEL = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("data_parallel_rank", "enable_expert_parallel", "expert_placement_strategy"),
)
_KERNELS = re.compile("VLLM_.*(USE|MARLIN|MOE|FP4|FP8|CUTLASS|GEMM)")
"""Environment variables that choose kernels, and so the layout of weights."""

_COPY = (
    "with --model-loader-extra-config '{\"copy\": true}' each engine has weights of its own, which "
    "can be written."
)
_READ_ONLY = f"Weights of --load-format tms are shared and cannot be written; {_COPY}"


def _prepare(model: Any, model_config: Any, device: Any) -> None:
    """vLLM's work on a model of a set, in which stand-ins are in the place of weights.

    vLLM 0.33.0 ties an lm_head to the embeddings if their weights are equal. Stand-ins do not tell,
    and what the publisher has tied shares its memory in the set.
    """
    tie = getattr(utils, _TIE, None)
    if tie:
        setattr(utils, _TIE, lambda model, model_config: None)
    try:
        process_weights_after_loading(model, model_config, device)
    finally:
        if tie:
            setattr(utils, _TIE, tie)


_TIE = "maybe_retie_word_embeddings"


def _refuse(model: Any, model_config: Any, *_: Any, **__: Any) -> None:
    """In place of the model's load_weights."""
    finalize_layerwise_reload(model, model_config)  # takes a reload back for which nothing came
    raise NotSupportedError(_READ_ONLY)


def _sparing_sets(zero: Any) -> Any:
    """vLLM's zero_weights, with which a worker resets its weights."""

    @functools.wraps(zero)
    def zeroed(model: Any, *arguments: Any, **named: Any) -> Any:
        if getattr(model.load_weights, "func", None) is _refuse:
            raise NotSupportedError(_READ_ONLY)
        return zero(model, *arguments, **named)

    return zeroed


def _advance(worker: Any, back: bool = False) -> int:
    """As `tms.Following.advance`, of all weights of all workers of this engine, or of none.

    With vLLM's own calls, once all requests have finished or were aborted:

        llm.collective_rpc("tms_advance")  # kwargs={"back": True}: keeps the version before
        assert llm.reset_prefix_cache()  # False: a request runs, and nothing was dropped

    Args:
        back: whether the version before stays on the device, for "tms_back".

    Returns:
        The number of the version.

    Raises:
        GroupError: on all workers; all have the weights that they had, or the message says which
            do not, and what is paused.
    """
    return _move(worker, "advance", back)


def _back(worker: Any) -> int:
    """As `_advance`, to the version before."""
    return _move(worker, "back", False)


def _move(worker: Any, operation: str, keeps: bool) -> int:
    workers = worker.vllm_config.parallel_config.world_size
    begun = time.perf_counter()
    version = _kept_model.move(operation, keeps, meeting_of_engine("vllm", workers))
    seconds = time.perf_counter() - begun
    _logger.info("tms: the weights are version %d (%.3f s).", version, seconds)
    return version


def _sets(worker: Any) -> dict[str, int]:
    """The names of the sets in which this worker's weights are, and the versions that it has."""
    return {one.name: one.version for one in _kept_model.following()}


def _making_room(request: Any) -> Any:
    """vLLM's request_memory, for versions that know nothing of weights on the device."""

    @functools.wraps(request)
    def requested(init_snapshot: Any, cache_config: Any) -> Any:
        size = get_model_loader(config.load_config).get_external_weight_memory(config)
        cache_config = copy.copy(cache_config)
        cache_config.gpu_memory_utilization -= size / init_snapshot.total_memory
        return request(init_snapshot, cache_config)

    return requested


config: Any = None
"""Of this process's worker."""

register_model_loader(NAME)(Loader)
worker: Any = importlib.import_module("vllm.v1.worker.gpu_worker")
worker.Worker.tms_advance, worker.Worker.tms_back, worker.Worker.tms_sets = _advance, _back, _sets
if hasattr(worker, "zero_weights"):
    worker.zero_weights = _sparing_sets(worker.zero_weights)
if not hasattr(BaseModelLoader, "get_external_weight_memory"):
    worker.request_memory = _making_room(worker.request_memory)
