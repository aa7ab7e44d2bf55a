"""A program that uses tms as its documentation shows: test_typing.py gives it to type checkers.

Nothing runs it. Where a line has a "type: ignore", a checker that finds no error there fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tms
import tms.distributed
import tms.ray

if TYPE_CHECKING:
    import torch
    from typing_extensions import assert_type


def scopes(actors: list[Any]) -> int:
    """Functions that make context managers; what follows a body is reached."""
    with tms.region("weights", backup="host", incremental=True), tms.disable(), tms.exclude():
        pass
    with tms.allocator("caching", max_split_size="40MiB"), tms.configure_subprocess():
        pass
    with tms.paused("weights") as nothing:
        assert_type(nothing, None)
    with tms.distributed.paused("weights", timeout=10):
        pass
    with tms.ray.paused(actors), tms.ray.lend(from_=actors, to=actors):
        return 1


@tms.region("weights")
def decorated(rows: int) -> str:
    return str(rows)


@tms.paused()
def also_decorated(rows: int) -> str:
    return str(rows)


def calls() -> None:
    assert_type(decorated(1), str)
    assert_type(also_decorated(1), str)
    assert_type(tms.pause(), int)
    assert_type(tms.pause(["weights", "cache"], discard=["cache"], timeout=5), int)
    assert_type(tms.resume("weights", wait=1.5), int)
    tms.configure(resume_wait=10)
    tms.prepare("weights", wait=True)
    tms.set_disk_backup_dir("/tmp")
    assert_type(tms.stats()["devices"][0]["tags"][0]["paused_bytes"], int)
    assert_type(tms.stats()["devices"][0]["progress"], "tms.ProgressStats | None")
    assert_type(tms.last_error(), str)
    assert_type(tms.library_path(), str)
    assert_type(tms.allocator_stats(), "list[dict[str, Any]]")
    assert_type(tms.allocator_snapshot(), "list[dict[str, Any]]")
    with tms.pool("buddy", device=0, memory="pinned") as pool:
        assert_type(pool, tms.Pool)
        assert_type(pool.malloc(1 << 20, stream=0), int)
    try:
        tms.trim()
    except tms.GroupError as error:
        assert_type(error.rank, int)
    except tms.TmsError as error:
        assert_type(error.code, int)


def with_torch(
    model: torch.nn.Module,
    graph: torch.cuda.CUDAGraph,
    tensor: torch.Tensor,
    stream: torch.cuda.Stream,
) -> None:
    with tms.kept("qwen3-8b@sha") as kept:
        assert_type(kept, tms.Kept)
        if kept.complete:
            assert_type(kept.attach(model, copy=True), "dict[str, torch.Tensor]")
        else:
            kept.publish(model)
            kept.publish({"weight": tensor})
    with tms.cuda_graph(graph, stream=stream, tag="graph", backup="host"):
        pass
    tms.live(tensor, [True, False])
    tms.live([tensor], [(0, 1 << 20)])
    tms.live(tensor, tensor, dim=1)


def wrong(model: torch.nn.Module) -> None:
    tms.region(1)  # type: ignore[arg-type]
    tms.region(backup="hots")  # type: ignore[arg-type]
    tms.pause(tag=1)  # type: ignore[arg-type]
    tms.resume(wait="1")  # type: ignore[arg-type]
    tms.live(1, [True])  # type: ignore[arg-type]
    tms.kept("name").attach("model")  # type: ignore[arg-type]
    tms.kept("name").publish([model])  # type: ignore[arg-type]
