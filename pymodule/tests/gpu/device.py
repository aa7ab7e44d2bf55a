"""PyTorch on a GPU, and the figures the tests look at."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from simulator import DROPIN, PYMODULE

import tms

MiB = 1 << 20


def torch_on_gpu() -> Any:
    """Returns torch; without a GPU for it, skips the calling module's tests."""
    if os.environ.get("TESTS_ON") == "simulator":
        pytest.skip("this run is on the simulator", allow_module_level=True)
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU", allow_module_level=True)
    if not hasattr(ctypes.CDLL(None), "tms_pause"):
        pytest.skip("libtms.so is not preloaded", allow_module_level=True)
    return torch


def reaching() -> dict[str, str]:
    """The environment of a program started as by `tms run`."""
    library = Path(tms.library_path())
    return {"LD_PRELOAD": f"{library}:{library.parent / 'libtms_reach.so'}"}


def free_memory(device: int = 0) -> int:
    """The device's free bytes (cudaMemGetInfo), once PyTorch has released what it only caches.

    A comparison of two tensors, for instance, leaves a result of their size in its cache.
    """
    import torch

    torch.cuda.empty_cache()
    free: int = torch.cuda.mem_get_info(device)[0]
    return free


def used() -> dict[str, int]:
    """MiB in use on each GPU, by UUID, according to NVML."""
    figures = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,memory.used", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {uuid: int(mib) for uuid, mib in (line.split(", ") for line in figures.splitlines())}


def full(value: float, size: int, device: int = 0) -> Any:
    """A tensor of `size` bytes."""
    import torch

    return torch.full((size,), value, dtype=torch.uint8, device=f"cuda:{device}")


def loaded_driver() -> str:
    """The path of the driver that PyTorch has loaded: a machine may have it nowhere else."""
    import torch

    torch.cuda.init()
    mapped = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in mapped if "/libcuda.so" in line)


def built(*call: str | Path) -> None:
    """Runs a compiler; it must succeed."""
    done = subprocess.run(
        call, env=unpreloaded(), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{call}\n{done.stdout}{done.stderr}"


def holds(tensor: Any, value: float) -> bool:
    """Whether every element is `value`."""
    return bool((tensor == value).all())


def resident_memory() -> int:
    """Bytes of host memory that this process holds, pinned memory included."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def unpreloaded(**variables: str) -> dict[str, str]:
    """The environment without a preload, and with these variables."""
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return {**own, **variables}


def with_saver(saver: str, *paths: str) -> dict[str, str]:
    """The environment, in which torch_memory_saver is that of the folder `saver`."""
    ours = [str(DROPIN), str(PYMODULE)]
    others = [p for p in os.environ.get("PYTHONPATH", "").split(":") if p not in ("", *ours)]
    first = ours if saver == ours[0] else [saver]
    return unpreloaded(PYTHONPATH=":".join([*first, *paths, *others]))


def run(
    *arguments: str, preloaded: bool = True, timeout: float = 120, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs Python in a new process: preloaded as this one is, or without.

    For settings that are read only once, given by `variables` in the environment.
    """
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **variables} if preloaded else unpreloaded(**variables),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(program: str, *arguments: str, **keywords: Any) -> str:
    """Standard output of Python code, which must succeed; the rest is as for `run`."""
    done = run("-c", textwrap.dedent(program), *arguments, **keywords)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
