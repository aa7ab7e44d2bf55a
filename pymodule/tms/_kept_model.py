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
import importlib
import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple

from . import _torch
from ._attached import attached
from ._errors import NotSupportedError, TmsError
from ._kept import Kept, kept
from ._library import load
from ._region import disable


class Load(NamedTuple):
    """How an engine makes a model.

    Attributes:
        loaded: reads the checkpoint.
        make: returns the model as its class makes it.
        process: does what the engine does once weights are there. It calls `named_modules()`.
        copy: whether this process has weights of its own.
        sleeps: whether weights must be in memory that sleeps.
        option: what the user chose, for messages.
        logger: of the engine.
    """

    loaded: Callable[[], Any]
    make: Callable[[], Any]
    process: Callable[[Any], None]
    copy: bool
    sleeps: bool
    option: str
    logger: logging.Logger

    def model(self, name: str) -> tuple[Any, bool]:
        """The model, from the set or published as it, and whether its weights are shared."""
        attached()
        found = kept(name)
        with contextlib.nullcontext() if self.copy else _ordinary():
            try:
                with found:
                    if found.complete:
                        return self._attached(found), not self.copy
            except TmsError as error:
                self.logger.warning("tms: %s", error)
            model, why = _publish(found, self.loaded, self.copy)
        if not why:
            self.logger.info("tms: published the model as %r.", name)
            return model, not self.copy
        words = f"The model could not be published as {name!r}: {why}."
        if self.sleeps and not self.copy:
            raise NotSupportedError(f"{words} Leave out {self.option}.") from why
        self.logger.warning("tms: %s The next start reads the checkpoint again.", words)
        return model, False

    def _attached(self, found: Kept) -> Any:
        begun = time.perf_counter()
        try:
            model = _attach(found, self.make, self.process, self.copy)
        except TmsError:
            raise
        except Exception as error:
            raise RuntimeError(
                f"The set {found.name!r} could not be attached: {error}. `tms kept drop "
                f"{found.name}` makes the next start read the checkpoint; if this happens again, "
                f"leave out {self.option}."
            ) from error
        seconds = time.perf_counter() - begun
        self.logger.info("tms: attached the set %r (%.3f s).", found.name, seconds)
        return model.eval()


def name_for(label: str, rank: int, facts: list[Any]) -> str:
    """A set's name: `facts` are all that the weights depend on, beside the device."""
    torch = importlib.import_module("torch")
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    text = re.sub(r" at 0x[0-9a-f]+", "", repr([str(device.uuid), rank, *facts]))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{label[:50]}@{digest}-rank{rank}"


def state_of(model: str) -> list[Any]:
    """What tells whether the files of a model have changed; of one that is no folder, nothing."""
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


def _publish(kept: Kept, loaded: Callable[[], Any], copy: bool) -> tuple[Any, Exception | None]:
    """Loads a model and publishes it; without `copy` its parameters are read-only then.

    Returns why it could not be published, too. It is whole all the same.
    """
    torch = importlib.import_module("torch")
    earlier = _on_device(torch)
    model = loaded()
    gc.collect()
    try:
        _put(torch, kept, model, earlier, copy)
    except Exception as error:
        return model, error
    return model, None


def _put(torch: Any, kept: Kept, model: Any, earlier: dict[int, Any], copy: bool) -> None:
    slots = list(_slots(torch, model, earlier))
    known = {*earlier, *(id(slot.tensor) for slot in slots)}
    for tensor in _on_device(torch).values():
        if id(tensor) not in known and tensor.numel():
            raise NotSupportedError(
                f"the load has left a tensor ({tensor.dtype}, {tuple(tensor.shape)}) that no "
                "module owns, such as in a kernel of a quantization"
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
        tensors[name] = tensor.to(_device(torch)) if name in host else tensor
    shared = {name for name in tensors if tensors[name].untyped_storage().data_ptr() in storages}
    kept._publish(torch, tensors, shared, not copy, host=host, values=_values(model))


def _attach(kept: Kept, make: Callable[[], Any], process: Callable[[Any], None], copy: bool) -> Any:
    """A model with the tensors of a set, which must be complete.

    Raises:
        TmsError: the set cannot be mapped. Nothing was made.
        ValueError: the model does not fit the set.
    """
    torch = importlib.import_module("torch")
    earlier = _on_device(torch)
    manifest = kept._manifest()
    tensors = kept._mapped(torch, manifest, 0 if copy else manifest["private"])
    with torch.device("meta"):
        model = make()
    model.named_modules = _StandIns(torch, model, earlier).named_modules
    process(model)
    del model.named_modules
    modules = dict(model.named_modules())
    has = {slot.name: slot.tensor for slot in _slots(torch, model, earlier)}
    wrong = [f"{name} is not in the set" for name in has if name not in tensors]
    places: dict[int, object] = {}
    for name, tensor in tensors.items():
        own, place = has.get(name), manifest["tensors"][name]
        value = tensor.cpu() if name in manifest["host"] else tensor
        if own is None:
            if not _add(torch, modules, name, value):
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
    if wrong:
        more = f", and {len(wrong) - 5} more" if len(wrong) > 5 else ""
        raise ValueError(f"the model does not fit the set: {'; '.join(wrong[:5])}{more}")
    for path, values in manifest["values"].items():
        if path in modules:
            modules[path].__dict__.update(values)
    gc.collect()
    torch.cuda.empty_cache()
    return model


@contextlib.contextmanager
def _ordinary() -> Iterator[None]:
    """Takes this thread out of a region's memory, though not out of its tag, for the body.

    In a region PyTorch would keep the memory that a model gives up for the set.
    """
    with disable() if _torch.routed() or load().active else contextlib.nullcontext():
        yield


class _Slot(NamedTuple):
    name: str
    """The module, and the place in it, such as "model.norm/_parameters/weight"."""
    tensor: Any
    is_parameter: bool


def _slots(torch: Any, model: Any, earlier: dict[int, Any]) -> Iterator[_Slot]:
    for path, module in model.named_modules():
        yield from _slots_of(torch, path, module, earlier)


def _slots_of(torch: Any, path: str, module: Any, earlier: dict[int, Any]) -> Iterator[_Slot]:
    """All that a module owns: parameters, buffers, attributes, also in lists, tuples and dicts."""

    def within(name: str, holder: Any, depth: int) -> Iterator[_Slot]:
        for key, value in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
            if isinstance(value, torch.Tensor) and id(value) not in earlier:
                yield _Slot(f"{name}/{key}", value, name == f"{path}/_parameters")
            elif depth and isinstance(value, (dict, list, tuple)) and key != "_modules":
                yield from within(f"{name}/{key}", value, depth - 1)

    return within(path, vars(module), 4)


def _add(torch: Any, modules: dict[str, Any], name: str, tensor: Any) -> bool:
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


def _on_device(torch: Any) -> dict[int, Any]:
    """The tensors in device memory that Python has, by id."""
    objects = gc.get_objects()
    tensors = [one for one in objects if issubclass(type(one), torch.Tensor)]
    return {id(tensor): tensor for tensor in tensors if tensor.is_cuda}


def _device(torch: Any) -> Any:
    return torch.device("cuda", torch.cuda.current_device())


def _alike(old: Any, new: Any) -> Any:
    """`new`, with the class and the attributes of `old`."""
    new.__class__ = old.__class__
    new.__dict__.update(old.__dict__)
    return new


class _StandIns:
    """Gives a module's tensors memory while the engine is at that module."""

    def __init__(self, torch: Any, model: Any, earlier: dict[int, Any]) -> None:
        self._torch = torch
        self._model = model
        self._earlier = earlier
        self._named_modules = model.named_modules
        self._busy = False
        self._small: dict[int, tuple[Any, Any]] = {}  # tensors that have one element, and strides

    def named_modules(self, *arguments: Any, **named: Any) -> Iterator[tuple[str, Any]]:
        """In place of the model's own."""
        for path, module in self._named_modules(*arguments, **named):
            if self._busy or arguments or named:
                yield path, module
                continue
            below = hasattr(module, "process_weights_after_loading") and module is not self._model
            parts = list(module.modules()) if below else [module]
            for part in parts:
                self._fill(part)
            self._busy = True
            try:
                yield path, module
            finally:
                self._busy = False
                for part in parts:
                    self._empty(part)

    def _fill(self, module: Any) -> None:
        for slot in _slots_of(self._torch, "", module, self._earlier):
            tensor = slot.tensor
            if id(tensor) in self._small:
                tensor.data = self._memory(tensor, self._small.pop(id(tensor))[1])
            elif tensor.is_meta:
                real = _alike(tensor, self._memory(tensor, tensor.stride()))
                self._torch.utils.swap_tensors(tensor, real)

    def _empty(self, module: Any) -> None:
        for slot in _slots_of(self._torch, "", module, self._earlier):
            tensor = slot.tensor
            if tensor.is_cuda and tensor.numel() > 1 and id(tensor) not in self._small:
                self._small[id(tensor)] = tensor, tensor.stride()
                tensor.data = self._memory(tensor, (0,) * len(tensor.shape))

    def _memory(self, like: Any, strides: Any) -> Any:
        """Ones, for scales must be positive; or zeros, for indices must be in their range."""
        last = sum((size - 1) * stride for size, stride in zip(like.shape, strides))
        count = 0 if 0 in like.shape else last + 1
        made = self._torch.empty(count, dtype=like.dtype, device=_device(self._torch))
        made.fill_(1 if like.dtype.is_floating_point else 0)
        return made.as_strided(like.shape, strides)
