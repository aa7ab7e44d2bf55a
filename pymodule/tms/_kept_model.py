"""An engine's model in a set: what its modules own after the load, and how a later start gets it.

Parameters are shared, read-only. Kernels write other tensors (a layer's scales, its work space), so
each process has a copy of these.

Layers change their weights after a load (quantization, other layouts) and set up their kernels
then. A later start makes the model without memory (PyTorch's device "meta") and has this done too:
layer by layer, on memory that is freed again when the layer is done. Then the set's tensors take
their places.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import logging
import re
import time
import weakref
from collections.abc import Iterable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, Callable

import torch

from . import _torch
from ._attached import attached
from ._errors import NotSupportedError, TmsError
from ._kept import Kept, kept, refuse, span
from ._kept_set import Set
from ._kept_together import move as move_together
from ._kept_versions import TRAINED, Following
from ._library import load as library
from ._meeting import Meeting
from ._region import disable
from ._scope import ThreadScope


def load(
    name: str,
    loaded: Callable[[], Any],  # reads the checkpoint
    make: Callable[[], Any],  # returns the model as its class makes it
    process: Callable[[Any], None],  # the engine's work once weights are there, by named_modules()
    copy: bool,  # this process has weights of its own
    sleeps: bool,  # weights must be in memory that sleeps
    option: str,  # the user's choice, for messages
    trained: bool,  # the user asks for weights that a trainer has written
    ask: str,  # how the user does so, for messages
    logger: logging.Logger,  # of the engine
) -> tuple[Any, bool]:
    """An engine's model, from the set or published as it, and whether its weights are shared."""
    attached()
    found = kept(name)
    model: Any = None
    earlier: dict[int, Any] = {}
    with contextlib.nullcontext() if copy else _ordinary(), _imports_on_host():
        try:
            with found:
                if found.complete:
                    begun = time.perf_counter()
                    version, by_trainer = _version(found, trained, ask)
                    model = _attach(found, make, process, copy)
                    if not copy and found._set:
                        followed[name] = weakref.ref(found._set)
                    seconds = time.perf_counter() - begun
                    words = "tms: attached version %d of the set %r%s (%.3f s)."
                    logger.info(words, version, name, by_trainer, seconds)
        except _OfTrainer as error:
            raise RuntimeError(str(error)) from None
        except TmsError as error:
            logger.warning("tms: %s", error)
        except Exception as error:
            raise RuntimeError(
                f"The set {name!r} could not be attached: {error}. `tms kept drop {name}` makes "
                f"the next start read the checkpoint; if this happens again, leave out {option}."
            ) from error
        complete = model is not None
        if not complete:
            if trained:
                logger.warning("tms: no trainer's weights are there; the checkpoint's are read.")
            earlier = _on_device()
            model = loaded()
    with _outside():
        _torch.release_cache()
        if complete:
            return model.eval(), not copy
        try:
            _publish(found, model, earlier, copy)
        except Exception as why:  # the model is still whole
            words = f"The model could not be published as {name!r}: {why}."
            if sleeps and not copy:
                raise NotSupportedError(f"{words} Leave out {option}.") from why
            logger.warning("tms: %s The next start reads the checkpoint again.", words)
            return model, False
    if not copy and found._published and (published := found._published()):
        followed[name] = weakref.ref(published)
    logger.info("tms: published the model as %r.", name)
    return model, not copy


class _OfTrainer(Exception):
    """A start that asks for a checkpoint finds weights that a trainer has written."""


def _version(found: Kept, trained: bool, ask: str) -> tuple[int, str]:
    """The number of the set's version, and words for the log on who has written it."""
    assert found._set is not None
    number = found._set.number(found._set.library.c.tms_kept_version, "asking for the version of")
    if TRAINED not in found._manifest():
        return number, ""
    if not trained:
        raise _OfTrainer(
            f"Version {number} of the set {found.name!r} was written by a trainer, so it does not "
            f"have the checkpoint's weights. To serve it, start with {ask}. `tms kept drop "
            f"{found.name}` makes the next start read the checkpoint."
        )
    return number, ", which a trainer has written"


followed: dict[str, weakref.ref[Set]] = {}
"""The sets whose tensors are this process's weights: the model's, and that of a draft."""


def following() -> list[Following]:
    """The sets of the models that this process still has."""
    found = [(name, of()) for name, of in followed.items()]
    return [Following(name, of, {}) for name, of in found if of is not None]


def move(operation: str, keeps: bool, meeting: Meeting | None) -> int:
    """Has the weights of all ranks go to another version, or of none; returns its number.

    Args:
        operation: "advance" or "back".
        keeps: whether an advance keeps the version before, for a return.

    Raises:
        GroupError: all weights have the version that they had; the message says why. Some worker
            shares no weights, or its layers have computed others of them.
    """
    sets = following()

    def forbid() -> None:
        if not sets:
            raise NotSupportedError("this process has no weights in a set, so no version can come")
        for one in sets:
            derived = [name for name in one.manifest()["tensors"] if name.endswith(_DERIVED)]
            if derived:
                raise NotSupportedError(
                    f"layers have computed {derived[0]} and others of the weights, and these would "
                    "stay as they are: start the engine again for new weights"
                )

    for one in sets:
        one.keeps = keeps
    return move_together(operation, sets, meeting, _TIMEOUT, forbid)


_TIMEOUT = 60.0
_DERIVED = ("/W_UK", "/W_UV", "/W_UK_T", "/w_kc", "/w_vc", "/gemma_weight")
"""What layers compute of their parameters and keep: the attention of DeepSeek's models, in vLLM and
in sglang, and sglang's norms of Gemma's models."""


def name_for(label: str, rank: int, facts: list[Any]) -> str:
    """A set's name: `facts` are all that the weights depend on, beside the device."""
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    text = re.sub(r" at 0x[0-9a-f]+", "", repr([str(device.uuid), rank, *facts]))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{label[:50]}@{digest}-rank{rank}"


def state_of(model: str) -> list[Any]:
    """The model, and the names, sizes and times of its files, if it is a folder."""
    folder = Path(model)
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    states = [(file.name, file.stat()) for file in files]
    return [model, *((name, state.st_size, state.st_mtime_ns) for name, state in states)]


def shared_bytes(name: str) -> int:
    """Bytes of parameters in a set; 0 if it is not there."""
    attached()
    with contextlib.suppress(TmsError), kept(name) as found:
        if found.complete:
            manifest = found._manifest()
            return int(sum(manifest["chunks"][: manifest["private"]]))
    return 0


def _publish(kept: Kept, model: Any, earlier: dict[int, Any], copy: bool) -> None:
    """Publishes a model; without `copy` its parameters are read-only then."""
    slots = list(_slots(model.named_modules(), earlier))
    if stray := _strays(slots, earlier):
        raise NotSupportedError(
            "the load has left tensors that no module owns, such as in a kernel of a quantization: "
            + ", ".join(stray[:5])
        )
    for module in model.modules():
        if getattr(getattr(module, "quant_method", None), "uses_meta_device", False):
            raise NotSupportedError("the weights are quantized while they are loaded")
    storages, host, tensors = set(), [], {}
    for name, tensor, is_parameter in slots:
        offloaded = not tensor.is_cuda or getattr(tensor, "_vllm_is_uva_offloaded", False)
        if is_parameter and offloaded:
            raise NotSupportedError(f"{name} is not in device memory")
        if is_parameter:
            storages.add(tensor.untyped_storage().data_ptr())
        if tensor.device.type == "cpu":
            host.append(name)
        tensors[name] = tensor.to(_device()) if name in host else tensor
    shared = {name for name in tensors if tensors[name].untyped_storage().data_ptr() in storages}
    kept._publish(torch, tensors, shared, not copy, host=host, values=_values(model))


def _attach(kept: Kept, make: Callable[[], Any], process: Callable[[Any], None], copy: bool) -> Any:
    """A model with the tensors of a set, which must be complete."""
    manifest = kept._manifest()
    tensors = kept._mapped(torch, manifest, 0 if copy else manifest["private"])
    earlier = _on_device()
    with torch.device("meta"):
        model = make()
    model.named_modules = _with_memory(model, earlier)
    process(model)
    del model.named_modules
    modules = dict(model.named_modules())
    slots = list(_slots(modules.items(), earlier))
    has = {name: tensor for name, tensor, _ in slots}
    wrong = [f"no module owns {one}" for one in _strays(slots, earlier)]
    wrong += [f"{name} is not in the set" for name in has if name not in tensors]
    places: dict[int, object] = {}
    for name, tensor in tensors.items():
        own, place = has.get(name), manifest["tensors"][name]
        value = tensor.cpu() if name in manifest["host"] else tensor
        if own is None:
            if not _add(modules, name, value):
                wrong.append(f"the model has no {name}")
        elif own.dtype != tensor.dtype or own.shape != tensor.shape:
            wrong.append(f"{name} is {own.dtype} {tuple(own.shape)} in the model")
        elif places.setdefault(id(own), place) != place:
            wrong.append(f"{name} is tied to another in the model, and not in the set")
        elif own.device == value.device:
            own.data = value
            own.requires_grad_(False)
        else:
            torch.utils.swap_tensors(own, _alike(own, value))
    refuse("model", wrong)
    for path, values in manifest["values"].items():
        if path in modules:
            modules[path].__dict__.update(values)
    return model


def _ordinary() -> contextlib.AbstractContextManager[None]:
    """Takes this thread out of a region's memory, though not out of its tag, for the body.

    In a region PyTorch would keep the memory that a model gives up for the set.
    """
    return disable() if _torch.routed() or library().active else contextlib.nullcontext()


def _outside() -> contextlib.AbstractContextManager[None]:
    """Takes this thread off all pools of PyTorch for the body, that of `_ordinary` included.

    While one serves, torch.cuda.empty_cache() gives nothing back, so a set would need room beside
    the model that it takes the place of.
    """
    if not (_torch.routed() or library().active):
        return contextlib.nullcontext()
    return ThreadScope(
        "tms.kept", lambda library: _torch.set_aside(), lambda library: {"active": False}
    )


@contextlib.contextmanager
def _imports_on_host() -> Iterator[None]:
    """Puts tensors that modules make at their import into host memory, as at a program's start.

    An engine imports parts of itself in a load. Their tables would be on the device then, which a
    load has as its default, and in an attach they would have no memory.
    """
    loaders: Any = SourceFileLoader
    execute = loaders.exec_module

    def exec_module(loader: Any, module: Any) -> None:
        with torch.device("cpu"):
            execute(loader, module)

    loaders.exec_module = exec_module
    try:
        yield
    finally:
        loaders.exec_module = execute


def _slots(
    modules: Iterable[tuple[str, Any]], earlier: dict[int, Any]
) -> Iterator[tuple[str, Any, bool]]:
    """All tensors that modules own: parameters, buffers, attributes, also in lists and dicts.

    Each with its name, the module and the place in it, such as "model.norm/_parameters/weight",
    and whether it is a parameter.
    """

    def within(name: str, holder: Any, depth: int) -> Iterator[tuple[str, Any, bool]]:
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, torch.Tensor) and id(value) not in earlier:
                yield f"{name}/{key}", value, name.endswith("/_parameters")
            elif depth and isinstance(value, (dict, list, tuple)) and key != "_modules":
                yield from within(f"{name}/{key}", value, depth - 1)

    for path, module in modules:
        yield from within(path, vars(module), 4)


def _add(modules: dict[str, Any], name: str, tensor: Any) -> bool:
    """Gives a module a tensor that its load would have made. False: it has no place for it."""
    path, *keys = name.split("/")
    holder: Any = vars(modules[path]) if path in modules else None
    for key in keys[:-1]:
        holder = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(holder, dict):
        return False
    parameter = keys[0] == "_parameters"
    holder[keys[-1]] = torch.nn.Parameter(tensor, requires_grad=False) if parameter else tensor
    return True


def _values(model: Any) -> dict[str, dict[str, Any]]:
    """Numbers and flags that modules own: a load sets some, such as a scale for kernels."""
    return {
        path: {key: value for key, value in vars(module).items() if type(value) in (bool, float)}
        for path, module in model.named_modules()
    }


def _on_device() -> dict[int, Any]:
    """The tensors in device memory that Python has, by id."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    return {id(tensor): tensor for tensor in tensors if tensor.is_cuda}


def _strays(slots: list[tuple[str, Any, bool]], earlier: dict[int, Any]) -> list[str]:
    """The tensors in device memory that are in no slot, as their dtypes and shapes."""
    gc.collect()
    known = {*earlier, *(id(one) for _, tensor, _ in slots for one in (tensor, tensor._base))}
    return [
        f"{tensor.dtype} {tuple(tensor.shape)}"
        for tensor in _on_device().values()
        if id(tensor) not in known and tensor.numel()
    ]


def _device() -> Any:
    return torch.device("cuda", torch.cuda.current_device())


def _alike(old: Any, new: Any) -> Any:
    """`new`, with the class and the attributes of `old`."""
    new.__class__ = old.__class__
    new.__dict__.update(old.__dict__)
    return new


def _with_memory(model: Any, earlier: dict[int, Any]) -> Any:
    """The model's named_modules; a module's tensors have memory while the engine is at it."""
    named_modules, busy = model.named_modules, False
    small: dict[int, tuple[Any, Any]] = {}  # tensors that have one element, and strides

    def fill(parts: list[tuple[str, Any]]) -> None:
        for _, tensor, _ in _slots(parts, earlier):
            if id(tensor) in small:
                tensor.data = _memory(tensor, small.pop(id(tensor))[1])
            elif tensor.is_meta:
                torch.utils.swap_tensors(tensor, _alike(tensor, _memory(tensor, tensor.stride())))

    def empty(parts: list[tuple[str, Any]]) -> None:
        for _, tensor, _ in _slots(parts, earlier):
            if tensor.is_cuda and tensor.numel() > 1 and id(tensor) not in small:
                small[id(tensor)] = tensor, tensor.stride()
                tensor.data = _memory(tensor, (0,) * len(tensor.shape))

    def one_by_one(*arguments: Any, **named: Any) -> Iterator[tuple[str, Any]]:
        nonlocal busy
        for path, module in named_modules(*arguments, **named):
            if busy or arguments or named:
                yield path, module
                continue
            below = hasattr(module, "process_weights_after_loading") and module is not model
            parts = [("", part) for part in (module.modules() if below else (module,))]
            fill(parts)
            busy = True
            try:
                yield path, module
            finally:
                busy = False
                empty(parts)

    return one_by_one


def _memory(like: Any, strides: Any) -> Any:
    """Ones, for scales must be positive; or zeros, for indices must be in their range."""
    made = torch.empty(span(like.shape, strides), dtype=like.dtype, device=_device())
    made.fill_(1 if like.dtype.is_floating_point else 0)
    return made.as_strided(like.shape, strides).data  # a view would keep `made` for good
