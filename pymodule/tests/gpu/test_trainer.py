"""transformers' Trainer, paused between steps and in the middle of gradient accumulation."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu

torch_on_gpu()
for module in ("transformers", "accelerate"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)

PROGRAM = Path(__file__).parent / "programs" / "train_transformers.py"
GIVEN = ("TMS_", "LD_PRELOAD")


def train(*arguments: str, **variables: str) -> dict[str, Any]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(GIVEN)}
    done = subprocess.run(
        [sys.executable, PROGRAM, *arguments],
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Any]:
    return train()


@pytest.mark.parametrize("way", ["environment", "region"])
def test_losses_are_as_undisturbed(undisturbed: dict[str, Any], way: str) -> None:
    library = {"LD_PRELOAD": os.environ["LD_PRELOAD"]}
    if way == "environment":
        library |= {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
        said = train("--pause", "3", **library)
    else:
        said = train("--pause", "3", "--region", **library)
    assert said["losses"] == undisturbed["losses"]
    assert said["sum"] == undisturbed["sum"], "not a bit of the weights differs"
    assert undisturbed["losses"][0] != undisturbed["losses"][-1]
    assert {pause["where"] for pause in said["pauses"]} == {
        "between steps",
        "in the middle of a step",
    }
    # Weights at once; from the second step on the two moments of the optimizer as well.
    assert said["pauses"][0]["freed"] >= 4 * said["parameters"]
    for pause in said["pauses"][2:]:
        assert pause["freed"] >= 12 * said["parameters"]
    for pause in said["pauses"]:
        assert pause["shown"] >= 0.9 * pause["freed"]
