"""The order in which a resume brings memory back, and the modules that wait for theirs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _torch
from ._arguments import shown
from ._errors import from_code
from ._library import load

if TYPE_CHECKING:
    import torch

    Ordered = Union[torch.Tensor, torch.nn.Module]


def first_runs(
    model: torch.nn.Module,
) -> contextlib.AbstractContextManager[list[torch.nn.Module]]:
    """Notes the modules of a model in the order in which they first run within the body.

    The list is for `resume`: run the model once as it will run after the resume. Modules that do
    not run are not in it.

    Raises:
        TypeError: model is no module.
    """
    if not _is_module(model):
        raise TypeError(f"model must be a torch.nn.Module, not {shown(model)}")
    return _noting(model)


@contextlib.contextmanager
def _noting(model: Any) -> Iterator[list[torch.nn.Module]]:
    order: list[Any] = []
    seen: set[int] = set()

    def note(module: Any, _inputs: object) -> None:
        if id(module) not in seen:
            seen.add(id(module))
            order.append(module)

    hooks = [each.register_forward_pre_hook(note) for each in model.modules()]
    try:
        yield order
    finally:
        for hook in hooks:
            hook.remove()


class Order:
    """What a resume is told of an order, and the hooks by which modules wait for their memory."""

    def __init__(self, given: Sequence[Ordered]) -> None:
        """Finds the memory of tensors and modules. The rest comes before theirs.

        Raises:
            TypeError: something is neither a tensor nor a module.
        """
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise TypeError(f"order must be a list of tensors and modules, not {shown(given)}")
        self._given: list[Any] = list(given)
        for each in self._given:
            if not (_is_module(each) or _has(each, "untyped_storage")):
                raise TypeError(f"order has {shown(each)}, which is no tensor and no module")
        self._listed = {id(each) for each in self._given}
        ranges = [
            _Range(address, size, step)
            for step, each in enumerate(self._given)
            for address, size in self._memory(each)
        ]
        self._number = ctypes.c_uint64()
        self._array = (_Range * max(1, len(ranges)))(*ranges)
        self.arguments = (self._array, len(ranges), ctypes.byref(self._number))
        """The last arguments of tms_resume_in_order."""
        self._hooks: list[Any] = []

    def _memory(self, of: Any) -> Iterator[tuple[int, int]]:
        """The addresses and sizes of a tensor, or of a module without other modules of the list."""
        if not _is_module(of):
            # Subclasses may have no memory of their own that can be found.
            with contextlib.suppress(RuntimeError, NotImplementedError):
                if of.is_cuda:
                    storage = of.untyped_storage()
                    yield storage.data_ptr(), storage.nbytes()
            return
        for tensor in (*of.parameters(recurse=False), *of.buffers(recurse=False)):
            yield from self._memory(tensor)
        for child in of.children():
            if id(child) not in self._listed:
                yield from self._memory(child)

    def hook(self) -> None:
        """Has modules wait for their memory from now on, until all is back.

        Later modules first: another thread that runs the model now must not be let in by one that
        waits, and then use one that does not wait yet.
        """
        for step, each in reversed([*enumerate(self._given)]):
            if not self._is_over() and _is_module(each):
                self._hook(each, step)
        if self._is_over():
            self._remove()

    def _hook(self, module: Any, step: int) -> None:
        def enter(_module: object, _inputs: object) -> None:
            if self._is_over():
                self._remove()
                return
            code = load().c.tms_order_enter(self._number, step)
            if code:
                raise from_code(code, "waiting for a module's memory", load().last_error)

        def leave(*_ignored: object) -> None:
            load().c.tms_order_leave(self._number)

        self._hooks.append(module.register_forward_pre_hook(enter))
        self._hooks.append(module.register_forward_hook(leave, always_call=True))

    def _is_over(self) -> bool:
        return bool(load().c.tms_order_is_over(self._number))

    def _remove(self) -> None:
        while self._hooks:
            with contextlib.suppress(IndexError):  # another thread's
                self._hooks.pop().remove()
        _torch.look_again()


class _Range(ctypes.Structure):
    """tms_ordered."""

    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("step", ctypes.c_int)]


def _is_module(each: Any) -> bool:
    return _has(each, "register_forward_pre_hook")


def _has(each: Any, method: str) -> bool:
    return not isinstance(each, type) and hasattr(each, method)
