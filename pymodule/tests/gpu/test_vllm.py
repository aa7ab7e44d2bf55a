"""vLLM's sleep mode by tms, beside vLLM's own, in one run: tokens, weights, memory and times.

TESTS_VLLM names the runs to make, separated by commas; all of them take about seven minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu
from llama import WEIGHTS
from plugin import installed

torch = torch_on_gpu()
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)

HERE = Path(__file__).resolve().parent
PYMODULE = HERE.parent.parent
TMS = PYMODULE.parent / "build" / "bin" / "tms"
GIB = 1 << 30
GPUS = {"two": 2}
CACHE = float(os.environ.get("TESTS_VLLM_GIB", "68"))

RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "cumem": (["--backend", "cumem", "--short"], {}),
    "tms": (["--backend", "tms"], {}),
    "preloaded": (
        ["--backend", "tms"],
        {
            "LD_PRELOAD": os.environ["LD_PRELOAD"],
            "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
        },
    ),
    "everything": (
        ["--backend", "tms", "--short", "--everything", str(TMS)],
        {"LD_PRELOAD": os.environ["LD_PRELOAD"], "TMS_CONTROL": "1"},
    ),
    "reload": (["--backend", "tms", "--checkpoint"], {}),
    "two": (["--backend", "tms", "--tp", "2"], {}),
    "load-cumem": (["--backend", "cumem", "--load", "3"], {}),
    "load-tms": (["--backend", "tms", "--load", "3"], {}),
    "load-cumem-short": (["--backend", "cumem", "--load", "1.25"], {}),
    "load-tms-short": (["--backend", "tms", "--load", "1.25"], {}),
}
"""The driver's arguments and environment. The last four start no engine: half a minute for all."""

ASKED = os.environ.get("TESTS_VLLM", ",".join(RUNS)).split(",")
ENGINES = [run for run in ASKED if not run.startswith("load")]
LOADS = [run for run in ASKED if run.startswith("load")]


def missing(run: str) -> str:
    """Why a run cannot be made, "" if it can."""
    if run == "everything" and not TMS.exists():
        return "the command tms is not built"
    return "there is one GPU" if run == "two" and torch.cuda.device_count() < 2 else ""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the driver prints for each run; they use the GPU one after the other."""
    folder = tmp_path_factory.mktemp("vllm")
    paths = [str(folder), str(PYMODULE), str(HERE), *os.environ.get("PYTHONPATH", "").split(":")]
    installed(folder)
    inherited = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    processes = {}
    for name in filter(lambda run: not missing(run), ASKED):
        arguments, variables = RUNS[name]
        processes[name] = subprocess.Popen(  # they import at the same time
            [sys.executable, str(HERE / "vllm_driver.py"), *arguments]
            + ["--cache-gib", str(CACHE), "--after", str(folder / name)],
            env={**inherited, **variables, "PYTHONPATH": ":".join(filter(None, paths))},
            stdout=subprocess.PIPE,
            text=True,
        )
    said = {}
    try:
        for name, process in processes.items():
            (folder / name).touch()
            out, _ = process.communicate(timeout=250)
            said[name] = json.loads(out.splitlines()[-1]) if out.strip() else {"ok": False}
            said[name]["status"] = process.returncode
        yield said
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def phases(results: dict[str, Any], run: str) -> list[dict[str, Any]]:
    if missing(run):
        pytest.skip(missing(run))
    assert results[run]["ok"] and results[run]["status"] == 0, results[run]
    found: list[dict[str, Any]] = results[run]["phases"]
    return found


@pytest.mark.parametrize("run", ENGINES)
def test_tokens_and_weights_are_as_before(results: dict[str, Any], run: str) -> None:
    found = phases(results, run)
    workers = results[run]["who"]
    assert len({who["pid"] for who in workers}) == GPUS.get(run, 1)
    for who in workers:
        assert who["backend"] == ("CuMemBackend" if run == "cumem" else "TmsBackend"), who
        assert who["tms"] == (run != "cumem"), "libtms.so is there, or is not"
    assert results[run]["repeatable"]
    assert results[run]["distinct"] > 3 or run != "reload"
    checked = [phase for phase in found if "tokens" in phase]
    assert len(checked) >= 2
    for phase in checked:
        assert phase["tokens"] and phase["weights"], phase["name"]


@pytest.mark.parametrize("run", ENGINES)
def test_memory(results: dict[str, Any], run: str) -> None:
    """It frees all that vLLM's own backend frees, and each tag can come back alone."""
    found = phases(results, run)
    cache = GPUS.get(run, 1) * CACHE
    for phase in found:
        assert phase["before"] - phase["asleep"] >= (cache + WEIGHTS - 0.1) * GIB, phase["name"]
        assert phase["used"][-1] - phase["asleep"] >= (cache + WEIGHTS - 0.1) * GIB
        assert phase["asleep"] - found[0]["asleep"] < GIB / 4, "it grows"
    for phase in found:
        size = {"weights, then": WEIGHTS, "cache, then": cache}.get(
            " ".join(phase["name"].removeprefix("level 2, ").split()[:2])
        )
        if size:
            assert abs(phase["used"][0] - phase["asleep"] - size * GIB) < GIB / 2, phase["name"]


@pytest.mark.parametrize("run", [name for name in ENGINES if name != "cumem"])
def test_what_is_kept_in_host_memory(results: dict[str, Any], run: str) -> None:
    """Weights at level 1, nothing at level 2, the cache never."""
    for phase in phases(results, run):
        kept = {
            tag: sum(worker[tag]["backup_bytes"] for worker in phase["tags"])
            for tag in ("vllm.weights", "vllm.kv_cache")
        }
        assert kept["vllm.kv_cache"] == 0
        if phase["name"].startswith("level 2"):
            assert kept["vllm.weights"] == 0
        else:
            assert kept["vllm.weights"] >= (WEIGHTS - 0.1) * GIB


@pytest.mark.skipif("everything" not in ASKED, reason="not asked for")
def test_nothing_is_left_of_the_worker(results: dict[str, Any]) -> None:
    """While the engine sleeps the driver takes the rest; afterwards the engine goes on."""
    phases(results, "everything")
    said = results["everything"]
    found = said["everything"]
    assert found["tokens"] and found["weights"]
    assert found["asleep"] - said["idle"] > 200, "MiB: there was something left to take"
    assert found["out"] - said["idle"] <= 16


def figures(found: list[dict[str, Any]]) -> dict[str, float]:
    later = [phase for phase in found if phase["name"].startswith("later")]
    at_once = [phase for phase in found if phase["name"].startswith("at once")]
    return {
        "first sleep": found[0]["sleep_s"],
        "later sleeps": statistics.median(phase["sleep_s"] for phase in later),
        "first wake-up": found[0]["wake_s"],
        "later wake-ups": statistics.median(phase["wake_s"] for phase in later),
        "wake-ups at once": statistics.median(phase["wake_s"] for phase in at_once),
        "level 2": next((p["sleep_s"] for p in found if p["name"] == "level 2"), float("nan")),
        "weights loaded": statistics.median(
            [p["load_s"] for p in found if "load_s" in p] or [float("nan")]
        ),
    }


def test_loading(results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the most memory that a load takes. Where room is short, free memory is used again."""
    rows: dict[str, dict[str, Any]] = {}
    for run, said in results.items():
        if run in LOADS and "load" in said:
            rows[run] = said["load"]
        elif any(said.get("loading", [])):
            rows[f"{run}: the engine's load"] = said["loading"][0]
    with capsys.disabled():
        print(f"\n{'GiB of device memory':36}{'most':>8}{'after':>8}  error")
        for name, found in rows.items():
            most, after = (found[key] - found["before"] for key in ("peak", "after"))
            error = str(found.get("error", ""))[:60]
            print(f"{name:36}{most / GIB:8.2f}{after / GIB:8.2f}  {error}")
    for run in results.keys() & {"load-tms", "load-tms-short"}:
        found = rows[run]
        assert not found["error"] and found["right"], run
        assert found["after"] - found["before"] < 9 * GIB, "nothing is left behind"
    engines = [name for name in ("cumem", "tms") if results.get(name, {}).get("loading")]
    if len(engines) == 2:
        most = {run: results[run]["loading"][0] for run in engines}
        assert most["tms"]["peak"] <= most["cumem"]["peak"] + GIB // 8


def test_times(results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the times; ours are shorter."""
    table = {run: figures(phases(results, run)) for run in results if run in ENGINES}
    if not table:
        pytest.skip("none of the runs can be made")
    with capsys.disabled():
        version = next(iter(results.values()))["vllm"]
        print(f"\nvLLM {version}, {WEIGHTS:.1f} GiB of weights, {CACHE:.0f} GiB of cache, seconds:")
        print(f"{'':17}" + "".join(f"{name:>16}" for name in table))
        for row in next(iter(table.values())):
            print(f"{row:>17}" + "".join(f"{table[run][row]:16.3f}" for run in table))
    if "cumem" in table and "tms" in table:
        for row in ("first sleep", "later sleeps", "later wake-ups"):
            assert table["tms"][row] < table["cumem"][row], row
