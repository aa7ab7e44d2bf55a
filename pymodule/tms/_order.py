"""The order in which a resume brings memory back, and the modules that wait for theirs."""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _torch
from ._arguments import shown
from ._errors import from_code
from ._library import load
from ._module_calls import Around, Call, is_module, runs_as_one, surround
from ._region_pools import in_one_go

if TYPE_CHECKING:
    import torch

    Ordered = Union[torch.Tensor, torch.nn.Module]


def first_runs(
    model: torch.nn.Module,
) -> contextlib.AbstractContextManager[list[torch.nn.Module]]:
    """Notes the modules of a model in the order in which they are first called within the body.

    The list is for `resume`: run the model once as it will run after the resume. Modules that are
    not called are not in it.

    Raises:
        TypeError: model is no module.
    """
    if not is_module(model):
        raise TypeError(f"model must be a torch.nn.Module, not {shown(model)}")
    return _Noting(model)


class _Noting(contextlib.AbstractContextManager["list[Any]"]):
    """What `first_runs` returns. Where an interruption loses it, it ends with this object."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __enter__(self) -> list[Any]:
        self._order: list[Any] = []
        self._left = {id(each): each for each in self._model.modules()}
        me = weakref.ref(self)

        def find() -> Around | None:
            noting = me()
            return noting._note if noting is not None and noting._left else None

        self._end = surround(find)
        return self._order

    def __exit__(self, *exception: object) -> None:
        self._left = {}
        self._end()

    def _note(self, call: Call, module: Any, /, *arguments: Any, **keywords: Any) -> Any:
        if self._left.pop(id(module), None) is not None:
            self._order.append(module)
        return call(module, *arguments, **keywords)


Range = tuple[int, int, int]
"""An address, a size, and the step at which this memory comes back."""


class Order:
    """What a resume is told of an order, and what has modules wait for their memory.

    It knows modules by their numbers alone, so it keeps no model alive while it waits for its end.
    """

    def __init__(self, given: Sequence[Ordered]) -> None:
        """Finds the memory of tensors and modules. The rest comes before theirs.

        Raises:
            TypeError: something is neither a tensor nor a module.
        """
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise TypeError(f"order must be a list of tensors and modules, not {shown(given)}")
        items: list[Any] = list(given)
        for each in items:
            if not (is_module(each) or _is_tensor(each)):
                raise TypeError(f"order has {shown(each)}, which is no tensor and no module")
        self._listed = {id(each) for each in items}
        self._steps: dict[int, int] = {}  # of modules
        ranges, step = [], 0
        for each in items:
            memory = [*self._memory(each)]
            if memory and each is not items[0]:
                step += 1  # what has no memory would wait for that of the next
            ranges += [(address, size, step) for address, size in memory]
            if is_module(each):
                self._steps.setdefault(id(each), step)
        ranges += of_blocks(ranges, _torch.blocks(), step + 1)
        self._number = ctypes.c_uint64()
        self._array = (_Range * max(1, len(ranges)))(*itertools.starmap(_Range, ranges))
        self.arguments = (self._array, len(ranges), ctypes.byref(self._number))
        """The last arguments of tms_resume_in_order."""

    def _memory(self, of: Any) -> Iterator[tuple[int, int]]:
        """The addresses and sizes of a tensor, or of a module without other modules of the list."""
        if not is_module(of):
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

    def begin(self) -> None:
        """Has modules wait for their memory from now on, until all is back."""
        if self._steps and not self._is_over():
            surround(self._find)

    def _find(self) -> Around | None:
        if not self._is_over():
            return self._let_in
        _torch.look_again()
        return None

    def _is_over(self) -> bool:
        return bool(load().c.tms_order_is_over(self._number))

    def _let_in(self, call: Call, module: Any, /, *arguments: Any, **keywords: Any) -> Any:
        """Calls a module when its memory is back. Until it returns, the gate lets the thread in.

        An interruption may come between any two steps here. So the library is called and what it
        returns is noted in one go; and what the inner `finally` has not undone, the outer one does,
        or that of the module around this one.
        """
        step = self._step(module)
        if step is None:
            return call(module, *arguments, **keywords)
        library, noted = load(), _thread.noted
        before = len(noted)
        try:
            try:
                noted.extend(map(library.c.tms_order_enter, (self._number,), (step,)))
                if noted[before]:
                    doing = "waiting for a module's memory"
                    raise from_code(noted[before], doing, library.last_error)
                if before == 0:
                    _torch.look_again()  # free memory of the thread's pool may not be back
                return call(module, *arguments, **keywords)
            finally:
                self._leave(noted, before)
        finally:
            self._leave(noted, before)

    def _leave(self, noted: list[int], before: int) -> None:
        entered = noted[before:].count(0)
        in_one_go(
            map(load().c.tms_order_leave, itertools.repeat(self._number, entered)),
            map(noted.__delitem__, (slice(before, None),)),
        )

    def _step(self, module: Any) -> int | None:
        """The step for which a call of a module waits, or None."""
        if runs_as_one(module):
            inside = map(self._steps.get, map(id, module.modules()))
            return max((step for step in inside if step is not None), default=None)
        return self._steps.get(id(module))


class _Thread(_torch.thread_local):  # type: ignore[misc]
    """What tms_order_enter has returned for the calls that the current thread is in."""

    def __init__(self) -> None:
        self.noted: list[int] = []


_thread = _Thread()


def of_blocks(
    named: Iterable[Range], blocks: Iterable[tuple[int, int, bool]], unused: int
) -> Iterator[Range]:
    """The blocks of PyTorch's allocator of which ranges name a part, whole, and the free ones.

    PyTorch rounds sizes up and keeps what is left of a segment. The engine brings back at the first
    step a segment of which a byte is unnamed.

    Args:
        named: the ranges of tensors.
        blocks: the address and size of each, and whether it is free.
        unused: the step for memory that nothing uses.
    """
    ranges = sorted(named)
    for address, size, is_free in blocks:
        begin, end = (bisect.bisect_left(ranges, (at,)) for at in (address, address + size))
        if is_free:
            yield address, size, unused
        elif begin < end:
            yield address, size, min(step for _, _, step in ranges[begin:end])


class _Range(ctypes.Structure):
    """tms_ordered."""

    _fields_ = [("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("step", ctypes.c_int)]


def _is_tensor(each: object) -> bool:
    return not isinstance(each, type) and hasattr(each, "untyped_storage")
