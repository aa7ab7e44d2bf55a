"""hook_mode "torch": an allocator of PyTorch's pools, in processes without a preload."""

from __future__ import annotations

import pytest
from programs import PRELUDE, output


@pytest.mark.parametrize("preloaded", [False, True])
def test_out_of_memory(preloaded: bool) -> None:
    """On NULL PyTorch releases its cache, tries again, and finally raises its own error."""
    output(
        f"""
{PRELUDE}
saver.hook_mode = "torch"
saver.pause()
cdll = saver._impl._binary_wrapper.cdll
assert cdll.tms_torch_malloc(initial + SIZE, 0, None) is None
assert b"memory" in cdll.tms_last_error()
assert cdll.tms_torch_malloc(-1, 0, None) is None
with saver.region():
    kept = full(1)
    with raises(torch.OutOfMemoryError):
        full(2, initial)
    more = full(3)
assert holds(kept, 1) and holds(more, 3)
assert initial - free() == 2 * SIZE
""",
        preloaded=preloaded,
    )


def test_frees_find_their_segment() -> None:
    """From any thread, in or out of a region, of paused or active memory, ours or CUDA's own."""
    output(
        f"""
{PRELUDE}
import threading
import cuda
saver.hook_mode = "torch"
saver.pause()
cdll = saver._impl._binary_wrapper.cdll
def fresh():
    with saver.region("t", enable_cpu_backup=True):
        return cdll.tms_torch_malloc(SIZE, 0, None)
def release(pointer):
    cdll.tms_torch_free(pointer, SIZE, 0, None)
def in_thread(pointer):
    thread = threading.Thread(target=release, args=(pointer,))
    thread.start()
    thread.join()
for give_back in (release, in_thread):
    pointer = fresh()
    give_back(pointer)
    assert initial == free()
    pointer = fresh()
    saver.pause("t")
    give_back(pointer)
    saver.resume("t")
    assert initial == free()
    pointer = fresh()
    with saver.region("other"):
        give_back(pointer)
    with saver.disable():
        give_back(fresh())
    assert initial == free()
    give_back(cuda.malloc(SIZE))
    assert initial == free()
    give_back(None)
""",
        preloaded=False,
    )


def test_what_needs_interposition() -> None:
    """cudaMalloc in a region is CUDA's; pausable graphs are refused, with the way out."""
    output(
        f"""
{PRELUDE}
import cuda
saver.hook_mode = "torch"
with saver.region():
    pointer = cuda.malloc(SIZE)
saver.pause()
assert initial - free() == SIZE
cuda.free(pointer)
for use in (saver.cuda_graph, tms.cuda_graph):
    with raises(tms.NotSupportedError, "LD_PRELOAD"), use(torch.cuda.CUDAGraph()):
        pass
""",
        preloaded=False,
    )


def test_in_a_preloaded_process() -> None:
    """It uses the preloaded library, so that one pause finds all pausable memory."""
    output(
        f"""
{PRELUDE}
import cuda
saver.hook_mode = "torch"
with saver.region("t", enable_cpu_backup=True):
    tensor = full(1)
    pointer = cuda.malloc(SIZE)
maps = {{line.split()[-1] for line in open("/proc/self/maps") if "libtms" in line}}
assert len(maps) == 1, maps
tms.pause("t")
assert initial - free() == 0
tms.resume("t")
assert holds(tensor, 1)
graph = torch.cuda.CUDAGraph()
with saver.cuda_graph(graph, tag="t"):
    result = tensor + 1
graph.replay()
assert holds(result, 2)
tms.pause("t")
assert initial - free() == 0
"""
    )


def test_tms_itself() -> None:
    """tms.region and its companions work in such a process as well."""
    output(
        f"""
{PRELUDE}
saver.hook_mode = "torch"
with raises(tms.NotPreloadedError):
    tms.pause()
saver._ensure_initialized()
with tms.region("t", backup="host"):
    tensor = full(1)
    with tms.disable():
        ordinary = full(2)
with tms.paused("t"):
    assert initial - free() == SIZE
assert holds(tensor, 1) and holds(ordinary, 2)
(tag,) = tms.stats()["devices"][0]["tags"]
assert tag["live_bytes"] == SIZE
del tensor
tms.empty_cache()
assert initial - free() == SIZE
""",
        preloaded=False,
    )
