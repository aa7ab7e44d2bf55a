"""sglang's release and resume of memory with tms in the place of torch_memory_saver.

TMS_TEST_SGLANG names the runs to make, with commas between; all of them take about six minutes.
TMS_TEST_PEER is a folder that holds the unpacked wheel of torch_memory_saver itself: then it runs
too, and its times are in the table.
"""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu
from llama import WEIGHTS

torch = torch_on_gpu()
if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

HERE = Path(__file__).resolve().parent
PYMODULE = HERE.parent.parent
PEER = os.environ.get("TMS_TEST_PEER")
GIB = 1 << 30
CACHE_TOKENS = int(os.environ.get("TMS_TEST_SGLANG_TOKENS", "830000"))
CACHE = CACHE_TOKENS * 22 * 2 * 8 * 128 * 2 / GIB
"""GiB: layers, keys and values, heads, size of a head, bytes."""

RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "tms": ([], {}),
    "kept": (["--short"], {"TMS_RETAIN_CPU_BACKUP": "1"}),
    "graphs": (["--graphs", "--cycles", "10"], {}),
    "two": (["--tp", "2", "--cycles", "10"], {}),
    "peer": (["--short"], {}),
}
"""Arguments of the driver and its environment. "kept": host memory, from one cycle to the next."""

ASKED = os.environ.get("TMS_TEST_SGLANG", ",".join(RUNS)).split(",")


def missing(run: str) -> str:
    """Why a run cannot be made; "": it can."""
    if run == "two" and torch.cuda.device_count() < 2:
        return "there is one GPU"
    if run == "peer" and not PEER:
        return "TMS_TEST_PEER names no folder"
    return ""


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the driver says of each run, one after the other."""
    inherited = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    said: dict[str, Any] = {}
    for name in ASKED:
        if missing(name):
            continue
        saver = str(PEER) if name == "peer" else str(PYMODULE)
        others = [
            path for path in inherited.get("PYTHONPATH", "").split(":") if path != str(PYMODULE)
        ]
        path = ":".join(filter(None, [saver, str(HERE), *others]))
        process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "sglang_driver.py"),
                *RUNS[name][0],
                "--tokens",
                str(CACHE_TOKENS),
            ],
            env={**inherited, **RUNS[name][1], "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=320)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            out, _ = process.communicate()
        lines = [line for line in out.splitlines() if line.startswith("{")]
        said[name] = json.loads(lines[-1]) if lines else {"ok": False}
        said[name]["status"] = process.returncode
    return said


@pytest.fixture(params=ASKED)
def run(request: pytest.FixtureRequest, results: dict[str, Any]) -> dict[str, Any]:
    if missing(request.param):
        pytest.skip(missing(request.param))
    said: dict[str, Any] = results[request.param]
    assert said["ok"] and said["status"] == 0, {**said, "phases": None}
    assert said["saver"].startswith(str(PEER) if request.param == "peer" else str(PYMODULE))
    return {**said, "run": request.param}


def test_tokens_and_weights_are_as_before(run: dict[str, Any]) -> None:
    assert run["repeatable"] and run["distinct"] > 3
    checked = [phase for phase in run["phases"] if "tokens" in phase]
    assert len(checked) >= 2
    for phase in checked:
        assert phase["tokens"] and phase["weights"], phase["name"]
    if "--short" not in RUNS[run["run"]][0]:
        assert run["updated"] == [True, True], "weights that are written between count"
        for words in run.get("mistakes", {}).values():
            assert "released" in words


def test_memory(run: dict[str, Any]) -> None:
    gpus = 2 if run["run"] == "two" else 1
    for phase in run["phases"]:
        least = CACHE + WEIGHTS
        for tag, size in {"kv_cache alone": CACHE, "weights alone": WEIGHTS}.items():
            least = size if phase["name"] == tag else least
        if phase["name"] == "released twice":
            least = CACHE
        if phase["name"] == "cuda_graph alone":
            least = 0
        assert phase["before"] - phase["released"] >= (0.95 * least - 0.1) * GIB, phase["name"]
        assert abs(phase["after"] - phase["before"]) < gpus * GIB / 4, phase["name"]


def test_beside_running_requests(run: dict[str, Any]) -> None:
    if "--short" in RUNS[run["run"]][0]:
        pytest.skip("this one runs for its times")
    assert run["cycles"] == (10 if run["run"] in ("two", "graphs") else 100)
    assert run["grown"] < GIB / 4


def figures(found: list[dict[str, Any]]) -> dict[str, float]:
    groups = {
        kind: [phase for phase in found if phase["name"].startswith(kind)]
        for kind in ("first", "later", "at once")
    }
    return {
        f"{kind}: {what}": statistics.median(phase[f"{what}_s"] for phase in phases)
        for kind, phases in groups.items()
        for what in ("release", "resume")
    }


def test_times(results: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints them; ours are the shorter ones."""
    table = {run: figures(said["phases"]) for run, said in results.items() if said["ok"]}
    assert table
    with capsys.disabled():
        version = next(iter(results.values()))["sglang"]
        print(f"\nsglang {version}, seconds, {WEIGHTS:.1f} GiB of weights, {CACHE:.0f} of cache:")
        print(f"{'':17}" + "".join(f"{name:>12}" for name in table))
        for row in next(iter(table.values())):
            print(f"{row:>17}" + "".join(f"{table[run][row]:12.3f}" for run in table))
    if "peer" in table and "tms" in table:
        for row in table["peer"]:
            assert table["tms"][row] < table["peer"][row], row
