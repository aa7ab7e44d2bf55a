"""Programs written for torch_memory_saver: their calls, in their order, over the simulator.

The same programs run on PyTorch and a GPU in gpu/test_dropin.py. What they follow, by repository,
file and version, is in each one's docstring.
"""

from __future__ import annotations

import pytest
from programs import HERE, run


@pytest.mark.parametrize(
    ("client", "name"),
    [
        ("sglang", "sglang"),
        ("slime", "slime"),
        ("areal", "AReaL"),
        ("megatron", "Megatron-LM"),
        ("nemo_rl", "NeMo-RL"),
    ],
)
def test_client(client: str, name: str) -> None:
    """None of them is started with the library: it comes by subprocess, or by hook_mode."""
    result = run(str(HERE / "clients" / f"{client}.py"), preloaded=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == f"{name} done\n"
    # sglang pauses and resumes what it may not have; each tells once of a tag nobody has used.
    told = 'nothing was ever allocated with tag "nothing has this tag"; tags so far: '
    said = [f"tms: {call}: {told}" for call in ("pause", "resume") if client == "sglang"]
    lines = result.stderr.splitlines()
    assert len(lines) == len(said), result.stderr
    assert all(map(str.startswith, lines, said)), result.stderr
