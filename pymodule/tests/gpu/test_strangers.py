"""Programs of many kinds at once, paused by pid at random, or by turns on too little memory.

Each is compared with an undisturbed run of as many steps, bit for bit. TESTS_STRANGER_PAUSES
(50) is how often each is paused, TESTS_STRANGER_SECONDS (45) how long they take turns. STRANGERS
(all) names some of the programs, with commas between.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pytest
from device import MiB, built, loaded_driver, torch_on_gpu
from reaching import PROGRAMS, Program, equal, started, steer, tms, undisturbed

torch = torch_on_gpu()

GiB = 1024 * MiB
PAUSES = int(os.environ.get("TESTS_STRANGER_PAUSES", "50"))
CONTEXT = 700 * MiB
"""What a program's context and code take at most, beside its memory."""


@dataclass(frozen=True)
class Stranger:
    file: str
    needs: str = ""  # a Python module, the program itself among them
    environment: tuple[tuple[str, str], ...] = ()
    turns: bool = True


def allocating(configuration: str) -> Stranger:
    return Stranger(
        "with_allocations.py", environment=(("PYTORCH_CUDA_ALLOC_CONF", configuration),)
    )


def ranks(name: str, transports: str, turns: bool = True) -> Stranger:
    """MPI by these transports of UCX; TORCHELASTIC_RUN_ID names the launch to tms.

    UCX exports each buffer as a dma-buf unless it is told not to. A gated pause is refused then.
    """
    variables = (
        ("TORCHELASTIC_RUN_ID", name),
        ("UCX_TLS", transports),
        ("UCX_CUDA_COPY_DMABUF", "n"),
    )
    return Stranger("with_mpi.py", "with_mpi", variables, turns)


STRANGERS = {
    "triton softmax": Stranger("with_softmax.py", "triton"),
    "compiled for new shapes": Stranger("with_autotune.py", "triton"),
    "captures": Stranger("with_recapture.py"),
    "segments": allocating("max_split_size_mb:64"),
    "expandable segments": allocating("expandable_segments:True"),
    "cudaMallocAsync": allocating("backend:cudaMallocAsync"),
    "threads": Stranger("with_threads.py"),
    "workers": Stranger("with_workers.py"),
    "NCCL": Stranger("with_world.py"),
    "CuPy graphs": Stranger("with_cupy_graphs.py", "cupy"),
    "CuPy pools": Stranger("with_cupy_pools.py", "cupy"),
    "RMM": Stranger("with_rmm.py", "rmm"),
    "RMM for PyTorch": Stranger("with_rmm_torch.py", "rmm.allocators.torch"),
    "graph nodes": Stranger("with_graph_nodes.py", "cuda.bindings.runtime"),
    "modules": Stranger("with_modules.py", "cuda.bindings.nvrtc"),
    "JAX graphs": Stranger("with_jax_graphs.py", "jax"),
    "Numba streams": Stranger("with_numba_streams.py", "numba.cuda.np.arrayobj"),
    "mapped pages": Stranger("with_pages.cu"),
    "arrays": Stranger("with_arrays.cu"),
    "memory pools": Stranger("with_pools.cu"),
    "llama.cpp": Stranger("with_llama.py", "with_llama"),
    "ONNX Runtime": Stranger("with_onnx.py", "with_onnx"),
    "MPI": ranks("mpi", "^cuda_ipc"),
    "MPI with CUDA IPC": ranks("mpi-ipc", "all", turns=False),
}
"""Without `turns`: --share pauses one process, and these map memory of each other."""


def command(stranger: Stranger, folder: Path) -> list[str | Path] | str:
    """How it is called, or why it cannot be."""
    source = PROGRAMS / stranger.file
    if source.suffix == ".cu":
        nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
        if not Path(nvcc).exists():
            return "there is no nvcc here"
        program = folder / source.stem
        built(
            nvcc,
            "-cudart",
            "shared",
            "-O2",
            "-arch=sm_90",
            "-o",
            program,
            source,
            "-Xlinker",
            loaded_driver(),
        )
        return [program]
    if stranger.needs:
        tried = subprocess.run(
            [sys.executable, "-c", f"import {stranger.needs}"],
            cwd=PROGRAMS,
            env=undisturbed(),
            capture_output=True,
            text=True,
            check=False,
        )
        if tried.returncode != 0:
            return f"{stranger.needs} cannot be imported: {tried.stderr.splitlines()[-1]}"
    return [sys.executable, source]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str | Path]]:
    folder = tmp_path_factory.mktemp("strangers")
    chosen = [name for name in os.environ.get("STRANGERS", "").split(",") if name]
    names = chosen or list(STRANGERS)
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda name: command(STRANGERS[name], folder), names))
    made = {}
    for name, how in zip(names, found):
        if isinstance(how, str):
            print(f"\n    {name}: not run: {how}", flush=True)
        else:
            made[name] = how
    return made


def environment(name: str, folder: Path) -> dict[str, str]:
    caches = {
        variable: str(folder / variable)
        for variable in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUPY_CACHE_DIR")
    }
    return {
        **caches,
        **dict(STRANGERS[name].environment),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }


def together(commands: dict[str, list[str | Path]], work: Callable[[str], None]) -> dict[str, str]:
    """Works on all programs at once; returns what went wrong with which."""

    def attempt(name: str) -> str:
        try:
            work(name)
        except Exception as failed:  # noqa: BLE001
            return f"{type(failed).__name__}: {failed}"
        return ""

    with ThreadPoolExecutor(len(commands)) as threads:
        answers = dict(zip(commands, threads.map(attempt, commands)))
    return {name: answer for name, answer in answers.items() if answer}


def disturb(program: Program, seed: str) -> None:
    """Pauses and resumes it at random moments."""
    moments = random.Random(seed)
    for _ in range(PAUSES):
        time.sleep(moments.uniform(0, 0.3))
        program.check()
        steer(program, "pause", "--timeout", "60", seconds=60)
        time.sleep(moments.choice((0, 0, 0.05, 0.2)))
        steer(program, "resume", "--wait", "60", seconds=60)


def test_paused_at_random_moments(commands: dict[str, list[str | Path]], tmp_path: Path) -> None:
    def work(name: str) -> None:
        variables = environment(name, tmp_path)
        host = ["--backup", "host"]
        with started(
            commands[name], 0, options=host, seconds=300, environment=variables
        ) as program:
            program.ready()
            disturb(program, name)
            said = program.end()
        equal(commands[name], said, seconds=200, environment=variables)
        print(f"    {name}: {PAUSES} pauses, {said[0]} steps, equal", flush=True)

    wrong = together(commands, work)
    assert not wrong, "\n\n".join(f"{name}: {what}" for name, what in wrong.items())


def test_turns_on_too_little_memory(commands: dict[str, list[str | Path]], tmp_path: Path) -> None:
    """Each works on, though only some of them have room at the same time."""
    commands = {name: how for name, how in commands.items() if STRANGERS[name].turns}
    seconds = float(os.environ.get("TESTS_STRANGER_SECONDS", "45"))
    room = CONTEXT * len(commands) + min(2 * GiB, len(commands) * GiB // 4)
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(max(0, free - room), dtype=torch.uint8, device="cuda")
    said: dict[str, tuple[int, str]] = {}
    with ExitStack() as stack:
        programs = {
            name: stack.enter_context(
                started(
                    commands[name],
                    0,
                    options=["--share", "--backup", "host"],
                    seconds=300,
                    environment=environment(name, tmp_path),
                )
            )
            for name in commands
        }

        def work(name: str) -> None:
            programs[name].ready()
            time.sleep(seconds)
            programs[name].check()

        wrong = together(commands, work)
        listed = {process["pid"]: process for process in tms("ps", seconds=60)}
        paused = sum(
            device["pauses"]["count"]
            for program in programs.values()
            for device in listed.get(program.pid, {}).get("stats", {}).get("devices", [])
        )

        def end(name: str) -> None:
            if name not in wrong:
                said[name] = programs[name].end()

        wrong.update(together(commands, end))
    del hog
    torch.cuda.empty_cache()

    def compare(name: str) -> None:
        if name in said:
            equal(commands[name], said[name], seconds=250, environment=environment(name, tmp_path))
            print(f"    {name}: {said[name][0]} steps, equal", flush=True)

    wrong.update(together(commands, compare))
    print(f"    {paused} pauses in all", flush=True)
    assert not wrong, "\n\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert paused > 0, "they all had room at once"
