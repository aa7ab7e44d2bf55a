"""CUDA graphs whose own memory is pausable, over the simulator."""

from __future__ import annotations

import pytest
from programs import PRELUDE, output

WAYS = {
    "tms": 'lambda graph, backup, **more: tms.cuda_graph(graph, backup=backup, tag="graph", '
    "**more)",
    "drop-in": 'lambda graph, backup, **more: saver.cuda_graph(cuda_graph=graph, tag="graph", '
    'enable_cpu_backup=backup == "host", **more)',
}


@pytest.fixture(params=WAYS)
def prelude(request: pytest.FixtureRequest) -> str:
    return f"{PRELUDE}\ncapture = {WAYS[request.param]}\n"


@pytest.mark.parametrize("backup", [None, "host"])
@pytest.mark.parametrize("inside", ["torch.cuda.synchronize()", "region.__enter__()"])
def test_replay_after_resume(prelude: str, backup: str | None, inside: str) -> None:
    """Also when the capture is made within a region, whose pool must not serve it."""
    output(
        f"""
{prelude}
source = full(1)
region = tms.region("region")
{inside}
graph = torch.cuda.CUDAGraph()
with capture(graph, {backup!r}):
    between = source + 1
    result = between + 1
    del between
assert not torch.cuda.is_current_stream_capturing()
assert graph.pool() is not None
address = result.data_ptr()
for number in range(1, 4):
    source.fill_(number)
    graph.replay()
    assert holds(result, number + 2)
    before = torch.cuda.mem_get_info()[0]
    tms.pause("graph")
    assert torch.cuda.mem_get_info()[0] == before + 2 * SIZE
    tms.resume("graph")
    assert torch.cuda.mem_get_info()[0] == before
    assert result.data_ptr() == address
    assert holds(result, number + 2) == ({backup!r} == "host")
    source.fill_(10 + number)
    graph.replay()
    assert holds(result, 12 + number)
"""
    )


def test_settings_and_errors(prelude: str) -> None:
    """A pause within is refused; an error within ends the capture and restores everything."""
    output(
        f"""
{prelude}
saver._ensure_initialized()
cdll = saver._impl._binary_wrapper.cdll
with tms.region("region", backup="host"):
    tensor = full(3)
    with raises(tms.CaptureError):
        with capture(torch.cuda.CUDAGraph(), None):
            assert cdll.tms_get_current_tag() == b"graph"
            assert not cdll.tms_get_enable_cpu_backup()
            tms.pause()
    assert cdll.tms_get_current_tag() == b"region"
    assert cdll.tms_get_enable_cpu_backup()
assert not cdll.tms_get_interesting_region()
tms.pause()
tms.resume()
assert holds(tensor, 3)
for wrong in (dict(tag=""), dict(backup="tape")):
    with raises(ValueError):
        tms.cuda_graph(torch.cuda.CUDAGraph(), **wrong)
"""
    )
