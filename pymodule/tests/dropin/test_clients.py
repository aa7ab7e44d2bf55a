"""Programs written for torch_memory_saver make their calls, in their order, over the simulator.

The same programs run on PyTorch and a GPU in gpu/test_dropin.py. Each one's docstring names what it
follows, by repository, file and version.
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
    """None is started with the library, which comes by subprocess or by hook_mode."""
    result = run(str(HERE / "clients" / f"{client}.py"), preloaded=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == f"{name} done\n"
    # sglang pauses and resumes tags that it may not have. Each call warns once of an unused tag.
    told = 'nothing was ever allocated with tag "nothing has this tag"; tags so far: '
    said = [f"tms: {call}: {told}" for call in ("pause", "resume") if client == "sglang"]
    lines = result.stderr.splitlines()
    assert len(lines) == len(said), result.stderr
    assert all(map(str.startswith, lines, said)), result.stderr
