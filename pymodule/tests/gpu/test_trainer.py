"""transformers' Trainer, paused between steps and in the middle of gradient accumulation.

On one GPU, and on two with FSDP, where all ranks pause together.
"""

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
from group import meeting
from reaching import undisturbed as undisturbed_environment

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus
for module in ("transformers", "accelerate"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed", allow_module_level=True)

PROGRAM = str(Path(__file__).parent / "programs" / "train_transformers.py")


def train(ranks: int, *arguments: str, **variables: str) -> list[dict[str, Any]]:
    """What each rank prints."""
    launcher: list[str] = []
    if ranks == 1:  # else the Trainer splits each batch over all GPUs it sees
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        variables["CUDA_VISIBLE_DEVICES"] = visible.split(",")[0]
    else:
        port = meeting().rpartition(":")[2]
        launcher = ["-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(ranks)]
        launcher += ["--master-addr", "127.0.0.1", "--master-port", port]
    done = subprocess.run(
        [sys.executable, *launcher, PROGRAM, *arguments],
        env={**undisturbed_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    said: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    assert len(said) == ranks
    return said


@pytest.fixture(scope="module", params=[1, 2], ids=["one", "fsdp"])
def undisturbed(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    if torch.cuda.device_count() < request.param:
        pytest.skip("there is one GPU")
    return train(request.param)


@pytest.mark.parametrize("way", ["environment", "region"])
def test_losses_are_as_undisturbed(undisturbed: list[dict[str, Any]], way: str) -> None:
    """On every rank, and so are weights and optimizer state."""
    ranks = len(undisturbed)
    variables = {"LD_PRELOAD": os.environ["LD_PRELOAD"]}
    if ranks > 1:
        variables["TMS_EXCLUDE"] = "libnccl.so"  # other ranks have its buffers mapped
    if way == "environment":
        variables |= {"TMS_INIT_ENABLE": "1", "TMS_INIT_ENABLE_CPU_BACKUP": "1"}
        paused = train(ranks, "--pause", "3", **variables)
    else:
        paused = train(ranks, "--pause", "3", "--region", **variables)
    for before, said in zip(undisturbed, paused):
        for what in ("losses", "weights", "moments"):
            assert said[what] == before[what], f"{what}: not a bit of them differs"
        assert before["losses"][0] != before["losses"][-1]
        parameters = said["of them here"]
        assert parameters == before["of them here"] == said["parameters"] / ranks, (
            "they are sharded"
        )
        assert {pause["where"] for pause in said["pauses"]} == {
            "between steps",
            "in the middle of a step",
        }
        # Weights at once; from the second step on also the optimizer's two moments.
        assert said["pauses"][0]["freed"] >= 4 * parameters
        for pause in said["pauses"][2:]:
            assert pause["freed"] >= 12 * parameters
        for pause in said["pauses"]:
            assert pause["shown"] >= 0.9 * pause["freed"]
