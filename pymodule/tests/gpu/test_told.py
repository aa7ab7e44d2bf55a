"""NVIDIA's own tools under a limit: nvidia-smi, pynvml, and a GPU that is divided (MIG)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
from device import torch_on_gpu
from reaching import TMS, undisturbed

torch = torch_on_gpu()

MiB, GiB = 1 << 20, 1 << 30
LIMIT = 40
QUERY = ["--query-gpu=memory.total,memory.used,memory.free", "--format=csv,noheader,nounits"]
CONTEXT = 1500  # MiB, at most, that a program with PyTorch takes beside its tensors

PROGRAM = """
import ctypes, json, sys, pynvml, torch
held = torch.ones(4 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
first = pynvml.nvmlDeviceGetMemoryInfo(device)
second = pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2)
free, total = torch.cuda.mem_get_info()
refused = ""
try:
    torch.empty(37 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError as error:
    refused = str(error)
own = [p.pid for p in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
said = {
    "nvml": [first.total, first.used, first.free],
    "second": [second.total, second.used, second.free],
    "cuda": [total, free],
    "properties": torch.cuda.get_device_properties(0).total_memory,
    "refused": refused,
    "own": own,
}
print(json.dumps(said), flush=True)
sys.stdin.read()
"""


def smi(*arguments: str, limit: bool = True) -> str:
    program = shutil.which("nvidia-smi")
    if not program:
        pytest.skip("there is no nvidia-smi here")
    run = [str(TMS), "run", "--limit", f"{LIMIT}G", "--"] if limit else []
    done = subprocess.run(
        [*run, program, *arguments],
        env=undisturbed(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def figures(uuid: str, limit: bool = True) -> list[int]:
    """MiB: the total, used and free memory of the GPU."""
    lines = smi("-i", uuid, *QUERY, limit=limit).splitlines()
    return [int(word) for word in lines[0].split(", ")]


def test_nvidia_smi_and_pynvml_under_a_limit() -> None:
    """Both say the limit; nvidia-smi says what this user's processes have."""
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    real, alone = figures(uuid, limit=False), figures(uuid)
    print(f"\nnvidia-smi: total, used, free {real} MiB; under the limit {alone}")
    table = smi("-i", uuid)
    print(table)
    assert alone[0] == LIMIT << 10
    assert f"{LIMIT << 10}MiB" in table
    with subprocess.Popen(
        [str(TMS), "run", "--limit", f"{LIMIT}G", "--", sys.executable, "-c", PROGRAM],
        env=undisturbed(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None and program.stdout is not None
        line = program.stdout.readline()
        beside, really = figures(uuid), figures(uuid, limit=False)
        _, errors = program.communicate("")
    assert line, errors
    said = json.loads(line)
    print(json.dumps({**said, "nvidia-smi beside it": beside, "without the limit": really}))
    print(errors)
    for name in ("nvml", "second"):
        total, used, free = said[name]
        assert total == LIMIT * GiB, name
        assert 4 * GiB <= used < 5 * GiB, name
        assert free <= total - used, name
    total, free = said["cuda"]
    assert total == LIMIT * GiB and free <= 36 * GiB
    assert said["properties"] == LIMIT * GiB
    assert "out of memory" in said["refused"]
    assert "limit" in errors
    assert program.pid in said["own"]
    assert beside[0] == LIMIT << 10
    used = beside[1] - alone[1]  # tests before this one leave memory with this process
    assert 4096 <= used <= 4096 + CONTEXT


def test_a_part_of_a_gpu() -> None:
    """Only where the GPU is divided already: no test changes that."""
    mode = smi("--query-gpu=mig.mode.current", "--format=csv,noheader", limit=False).split()
    print(f"\nMIG: {mode}")
    if "Enabled" not in mode:
        pytest.skip(f"no GPU is divided: MIG is {mode}")
    listed = smi("-L", limit=False)
    print(listed)
    part = next(word for word in listed.replace(")", "").split() if word.startswith("MIG-"))
    code = "import torch; print(torch.cuda.mem_get_info()[1])"
    done = subprocess.run(
        [TMS, "run", "--limit", "2G", "--", sys.executable, "-c", code],
        env={**undisturbed(), "CUDA_VISIBLE_DEVICES": part},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * GiB
