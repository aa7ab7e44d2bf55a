"""CUDA graphs whose own memory is pausable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _torch
from ._arguments import Backup
from ._errors import NotSupportedError
from ._library import load
from ._region import region
from ._scope import Scope, ThreadScope

if TYPE_CHECKING:
    import torch


def cuda_graph(
    cuda_graph: torch.cuda.CUDAGraph,
    pool: tuple[int, int] | None = None,
    stream: torch.cuda.Stream | None = None,
    capture_error_mode: str = "global",
    *,
    tag: str = "default",
    backup: Backup = None,
) -> contextlib._GeneratorContextManager[None]:
    """`torch.cuda.graph`, with the device memory that the graph takes pausable.

    That is the memory of intermediate results and of the tensors made in the body, which PyTorch
    takes from the device during the capture and keeps for the graph. While it is paused, the graph
    must not be replayed. Replays after the resume compute from what the graph reads, so without a
    backup only results that are read before the next replay are lost.

    Several graphs may share a pool. What a graph takes there that an earlier graph left free
    belongs to the earlier graph's tag, so capture graphs that share a pool with one tag.

    A torch.cuda.graph, or a torch.compile(mode="reduce-overhead") function, that captures within a
    `region` is pausable too, under the region's tag. That needs a PyTorch whose allocator serves
    from the pool begun last, such as 2.11 (https://github.com/pytorch/pytorch/pull/168382). In
    earlier versions the region's pool serves the capture, and later lends the graph's memory to
    others.

    Args:
        cuda_graph, pool, stream, capture_error_mode: as for torch.cuda.graph.
        tag, backup: as for `region`.

    Raises:
        NotSupportedError: libtms.so is not preloaded; it has to see captures begin and end.
        NotPreloadedError, TypeError, ValueError: as for `region`.
    """
    return capture(cuda_graph, pool, stream, capture_error_mode, region(tag, backup))


@contextlib.contextmanager
def capture(
    graph: Any, pool: Any, stream: Any, capture_error_mode: str, inside: Scope
) -> Iterator[None]:
    """`torch.cuda.graph` with `inside` in it. The graph's pool serves it, not a region's."""
    import torch

    library = load()
    if not library.interposes:
        raise NotSupportedError(
            "A CUDA graph's own memory is pausable only in a process with libtms.so preloaded: use "
            "torch.cuda.graph, or start the process with LD_PRELOAD=$(python -m tms --path)."
        )
    captured = torch.cuda.graph(
        graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
    )
    # For what entering and leaving a capture allocates, such as a random generator's state.
    plain = ThreadScope(
        "tms.cuda_graph()", lambda library: _torch.set_aside(), lambda library: {"active": False}
    )
    with plain, captured, inside:
        yield
