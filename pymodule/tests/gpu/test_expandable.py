"""PyTorch with expandable_segments:True, which maps its memory itself.

The setting is read once, so each test runs its program in a process of its own.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest
from device import output, torch_on_gpu

torch_on_gpu()

VARIABLES = ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"]

PRELUDE = """
import gc, json, torch
MiB = 1 << 20
SLACK = 48 * MiB  # what PyTorch rounds up, and kernels that the test loads
def free():
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0]
def expandable():
    return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if s["is_expandable"])
def full(value, size):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")
def holds(tensor, value):
    return bool((tensor == value).all())
def warm():
    assert holds(full(1, 8 * MiB), 1)
    torch.cuda.empty_cache()
"""


def run(program: str, variable: str, **keywords: Any) -> Any:
    """The program's output, from JSON."""
    keywords[variable] = "expandable_segments:True"
    return json.loads(output(PRELUDE + textwrap.dedent(program), **keywords))


@pytest.mark.parametrize("variable", VARIABLES)
def test_pause_and_resume(variable: str) -> None:
    """With a backup and without; growth after a resume; caches emptied while paused."""
    assert run(
        """
        import tms
        warm()
        beside = full(9, 64 * MiB)
        with tms.region("kept", backup="host"):
            kept = [full(value, 100 * MiB) for value in range(3)]
            small = torch.arange(1000, device="cuda")
        with tms.region("lost"):
            lost = full(5, 200 * MiB)
        assert expandable() >= 564 * MiB
        addresses = [tensor.data_ptr() for tensor in (*kept, small, lost, beside)]
        for cycle in range(3):
            torch.cuda.empty_cache()
            before = free()
            tms.pause("lost")
            assert free() >= before + 200 * MiB
            tms.pause()
            assert free() >= before + 500 * MiB, free() - before
            assert holds(beside, 9)
            tms.resume("kept")
            assert all(holds(tensor, value) for value, tensor in enumerate(kept))
            assert torch.equal(small, torch.arange(1000, device="cuda"))
            tms.resume()
            torch.cuda.empty_cache()
            assert abs(free() - before) <= SLACK, free() - before
            lost.fill_(cycle)
            assert holds(lost, cycle)
            assert addresses == [t.data_ptr() for t in (*kept, small, lost, beside)]

        # The segment grows, also while the rest of it is paused.
        with tms.region("kept", backup="host"):
            kept.append(full(3, 300 * MiB))
        assert all(holds(tensor, value) for value, tensor in enumerate(kept))
        with tms.paused("kept"):
            with tms.region("lost"):
                grown = full(7, 300 * MiB)
            assert holds(grown, 7)
        assert all(holds(tensor, value) for value, tensor in enumerate(kept))
        assert holds(lost, 2) and holds(grown, 7)

        # Freed while paused, and given back: unmapped and released by PyTorch.
        tms.pause()
        kept[1] = None
        del lost, grown
        gc.collect()
        tms.empty_cache()
        tms.resume()
        assert holds(kept[0], 0) and holds(kept[2], 2) and holds(kept[3], 3)
        live = sum(t["live_bytes"] for d in tms.stats()["devices"] for t in d["tags"])
        assert 600 * MiB <= live <= 600 * MiB + 2 * SLACK, live  # kept's cache is kept, lost's gone
        del kept, small
        gc.collect()
        tms.empty_cache()
        live = sum(t["live_bytes"] for d in tms.stats()["devices"] for t in d["tags"])
        assert live == 0, live
        assert holds(beside, 9)
        print("true")
        """,
        variable,
    )


# A training loop whose batch changes from step to step, the case that the setting's documentation
# describes: https://docs.pytorch.org/docs/stable/notes/cuda.html (expandable_segments).
TRAINING = """
try:
    import tms
except ImportError:
    tms = None
torch.manual_seed(1)
torch.use_deterministic_algorithms(True)
sizes = [64, 96, 80, 160, 112, 256, 144, 320, 208, 384, 240, 352, 272, 400]
model = torch.nn.Sequential(
    *[torch.nn.Sequential(torch.nn.Linear(2048, 2048), torch.nn.GELU()) for _ in range(12)]
).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
losses = []
for step, size in enumerate(sizes):
    x = torch.randn(size * 16, 2048, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    losses.append(loss.item())
    del x, loss
    if pausing and step % 3 == 2:
        reserved, before = torch.cuda.memory_reserved(), free()
        tms.pause()
        assert free() >= before + reserved - SLACK, (free() - before, reserved)
        tms.resume()
        assert abs(free() - before) <= SLACK
    elif pausing and step == 7:
        tms.pause()
        torch.cuda.empty_cache()
        tms.resume()
    elif step == 7:
        torch.cuda.empty_cache()
print(json.dumps([losses, torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()]))
"""


def train(variable: str, *, pausing: bool) -> Any:
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if pausing:  # everything is pausable, the gradients of autograd's threads too
        variables |= {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
    return run(f"pausing = {pausing}\n{TRAINING}", variable, preloaded=pausing, **variables)


def test_training_with_a_changing_batch() -> None:
    """The losses, to the last bit, and the peak are the same as without the library."""
    assert train(VARIABLES[1], pausing=True) == train(VARIABLES[1], pausing=False)


def test_in_a_graph() -> None:
    """A graph's own memory is mapped during its capture."""
    assert run(
        """
        import tms
        warm()
        source = full(1, 64 * MiB)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with tms.cuda_graph(graph, tag="graph", backup="host"):
            result = (source + 1) * 2
        address = result.data_ptr()
        for number in range(1, 4):
            source.fill_(number)
            graph.replay()
            before = free()
            tms.pause("graph")
            assert free() >= before + 64 * MiB
            tms.resume("graph")
            assert result.data_ptr() == address
            assert holds(result, 2 * (number + 1))
        print("true")
        """,
        VARIABLES[0],
    )
