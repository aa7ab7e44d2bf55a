"""Which parts of tensors have contents that a pause is to keep."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Union

from ._arguments import shown
from ._errors import from_code
from ._library import load

if TYPE_CHECKING:
    import torch

Live = Union[Sequence[bool], Sequence["tuple[int, int]"]]
"""A mask of equal blocks, or offsets and sizes in bytes."""


class _Array(Protocol):
    """A tensor, or an array of numpy."""

    def tolist(self) -> Any: ...


def live(
    tensors: torch.Tensor | Sequence[torch.Tensor], parts: Live | _Array, *, dim: int = 0
) -> None:
    """Says which parts of tensors the next pause is to keep; it copies and keeps exactly these.

    The other bytes are unspecified after the resume, as in fresh memory. This counts for the next
    pause of the memory alone, even one that fails: so say it before each pause, and give no other
    byte a meaning in between. A later call replaces what an earlier one said about the same
    tensors; `live(tensors, [True])` takes it back, if the program goes on without a pause. Any
    thread may call it. It is for contents in host memory, and makes no difference to other
    memory, to allocations below 2 MiB, and to a pause to disk.

    Args:
        tensors: a contiguous CUDA tensor, or a sequence of them, such as the layers of a cache; the
            same parts of each are live.
        parts: a mask, which is a list, a tensor or an array of bools. It splits `dim`, whose size
            it must divide, into equal blocks, and True keeps a block. Or pairs (offset, size) in
            bytes of a tensor, in any order.
        dim: of a mask, the dimension of blocks.

    Raises:
        NotPreloadedError: libtms.so is not in this process.
        TmsError: some of the memory is in no region, or is paused.
        TypeError, ValueError: a tensor is not contiguous, a mask does not divide it, a pair is not
            in it, or an argument is not what it should be. Nothing was noted.
    """
    several = isinstance(tensors, Iterable) and not hasattr(tensors, "data_ptr")
    several = several and not isinstance(tensors, (str, bytes))
    each: list[Any] = [*tensors] if several else [tensors]
    if not all(hasattr(one, "data_ptr") for one in each):
        wanted = "a CUDA tensor or a sequence of them"
        raise TypeError(f"tensors must be {wanted}, not {shown(tensors)}")
    mask: Any = parts
    listed = mask.tolist() if hasattr(mask, "tolist") else mask
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Iterable):
        wanted = "a mask of bools, or pairs (offset, size)"
        raise TypeError(f"parts must be {wanted}, not {shown(parts)}")
    given: list[Any] = list(listed)
    arrays: dict[tuple[int, ...], Any] = {}  # of tms_range, for layers that are alike
    for tensor in each:
        if not tensor.is_contiguous():
            raise ValueError("tensors must be contiguous: their blocks must be pieces of memory")
        if _shape(tensor) not in arrays:
            words = list(itertools.chain(*_ranges(tensor, given, dim)))
            arrays[_shape(tensor)] = (ctypes.c_size_t * len(words))(*words)
    library = load()
    for tensor in each:
        array, code = arrays[_shape(tensor)], 0
        if tensor.nbytes:
            code = library.c.tms_live(tensor.data_ptr(), tensor.nbytes, array, len(array) // 2)
        if code:
            raise from_code(code, "noting what is live", library.last_error)


def _shape(tensor: Any) -> tuple[int, ...]:
    """Returns the sizes on which a tensor's live ranges depend, beside the arguments."""
    return (*tensor.shape, tensor.nbytes)


def _ranges(tensor: Any, given: list[Any], dim: int) -> Iterator[tuple[int, int]]:
    """The offset and size in bytes of each pair, or of each run of blocks that a mask keeps."""
    given = [bool(each) if type(each).__name__ in ("bool", "bool_") else each for each in given]
    if not all(isinstance(each, bool) for each in given):
        for pair in given:
            offset, size = pair if _is_pair(pair) else (-1, -1)
            if not (0 <= offset <= tensor.nbytes and 0 <= size <= tensor.nbytes - offset):
                raise ValueError(
                    f"parts has {pair!r}, which is no pair (offset, size) within {tensor.nbytes} "
                    "bytes"
                )
            yield offset, size
    elif given:
        dims = len(tensor.shape)
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise TypeError(f"dim must be the number of a dimension, such as 0, not {dim!r}")
        if not -dims <= dim < dims:
            raise ValueError(f"dim must be a dimension of a tensor that has {dims}, not {dim}")
        if tensor.shape[dim] % len(given):
            raise ValueError(
                f"parts: a mask of {len(given)} blocks does not divide dimension {dim} of a "
                f"tensor, which has size {tensor.shape[dim]}"
            )
        rows = math.prod(tensor.shape[: dim % dims])
        block = tensor.nbytes // max(1, rows * len(given))
        runs = [(value, len(list(group))) for value, group in itertools.groupby(given)]
        at = 0
        for value, blocks in runs * rows:
            if value:
                yield at * block, blocks * block
            at += blocks


def _is_pair(given: object) -> bool:
    """Reports whether `given` is two ints."""
    return isinstance(given, (tuple, list)) and [type(each) for each in given] == [int, int]
