"""CUDA graphs whose own memory is pausable."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import _torch
from ._arguments import Backup, check_backup, check_tag
from ._errors import NotSupportedError
from ._library import Library, load
from ._region import region
from ._scope import ThreadScope
from ._warning import warn

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager


def cuda_graph(
    cuda_graph: Any,
    pool: Any = None,
    stream: Any = None,
    capture_error_mode: str = "global",
    *,
    tag: str = "default",
    backup: Backup = None,
) -> _GeneratorContextManager[None]:
    """`torch.cuda.graph`, with the device memory that the graph takes pausable.

    That is the memory of what is computed in between and of the tensors made in the body, which
    PyTorch takes from the device during the capture and keeps for the graph. While it is paused
    the graph must not be replayed; replays after the resume compute from what the graph reads,
    so without a backup only results that are read before the next replay are lost.

    Several graphs may share a pool; what a graph takes from it that an earlier one left free
    belongs to the earlier one's tag. Capture graphs that share a pool with one tag.

    A torch.cuda.graph, or a torch.compile(mode="reduce-overhead") function, that captures within a
    `region` is pausable too, under the region's tag. That needs a PyTorch whose allocator serves
    from the pool begun last, such as 2.11 (https://github.com/pytorch/pytorch/pull/168382): before,
    the region's pool serves the capture, and lends the graph's memory to others later.

    Args:
        cuda_graph, pool, stream, capture_error_mode: as for torch.cuda.graph.
        tag, backup: as for `region`.

    Raises:
        NotSupportedError: libtms.so is not preloaded; it has to see captures begin and end.
        NotPreloadedError, TypeError, ValueError: as for `region`.
    """
    return _cuda_graph(
        capture(cuda_graph, pool, stream, capture_error_mode),
        region(check_tag(tag), check_backup(backup)),
    )


@contextlib.contextmanager
def _cuda_graph(
    capturing: contextlib.AbstractContextManager[None],
    inside: contextlib.AbstractContextManager[None],
) -> Iterator[None]:
    with capturing, inside:
        yield


@contextlib.contextmanager
def capture(graph: Any, pool: Any, stream: Any, capture_error_mode: str) -> Iterator[None]:
    """`torch.cuda.graph`, also in a region: the graph's pool serves it, not the region's."""
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
    _warn_of_registered_buffers()
    with _Plain(), captured:
        yield


class _Plain(ThreadScope):
    """For what entering and leaving a capture takes, a random generator's state for one."""

    def __str__(self) -> str:
        return "tms.cuda_graph()"

    def settings(self, library: Library) -> dict[str, Any]:
        return {"active": False}

    def route(self, library: Library) -> _torch.Route | None:
        return _torch.set_aside()


_warned = False


def _warn_of_registered_buffers() -> None:
    """Once: NCCL registers the buffers of collectives that a graph captures, by physical memory."""
    global _warned
    distributed: Any = getattr(sys.modules.get("torch"), "distributed", None)
    initialized = getattr(distributed, "is_initialized", None)
    if _warned or initialized is None or not initialized():
        return
    # get_backend() would leave out "cpu:gloo,cuda:nccl", and what no backend was named for.
    if (
        os.environ.get("NCCL_GRAPH_REGISTER") == "0"
        or "nccl" not in distributed.get_backend_config()
    ):
        return
    _warned = True
    warn(
        "NCCL registers the buffers of collectives in a CUDA graph, and a registration does not "
        "survive a pause. Set NCCL_GRAPH_REGISTER=0 before starting, or capture such graphs anew "
        "after a resume."
    )
