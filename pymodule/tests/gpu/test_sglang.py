"""sglang's release and resume of memory, with tms in place of torch_memory_saver.

TESTS_SGLANG names the runs to make, separated by commas; all of them take about eight minutes.
TESTS_PEER is a folder with the unpacked wheel of torch_memory_saver itself: then that runs too,
and its times are in the table; and so does the plugin beside it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu, with_saver
from llama import TOKEN, WEIGHTS
from plugin import installed
from simulator import BUILD, DROPIN, PYMODULE

torch = torch_on_gpu()
if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

HERE = Path(__file__).resolve().parent
TMS = BUILD / "bin" / "tms"
PEER = os.environ.get("TESTS_PEER")
GIB = 1 << 30
CACHE_TOKENS = int(os.environ.get("TESTS_SGLANG_TOKENS", "830000"))
CACHE = CACHE_TOKENS * TOKEN / GIB
"""GiB."""

RUNS: dict[str, tuple[list[str], dict[str, str]]] = {
    "tms": ([], {}),
    "kept": (["--short"], {"TMS_RETAIN_CPU_BACKUP": "1"}),
    "graphs": (["--graphs", "--cycles", "10"], {}),
    "two": (["--tp", "2", "--cycles", "10"], {}),
    "profile": (["--short", "--limits"], {}),
    "profile-kept": (["--short", "--limits"], {"TMS_RETAIN_CPU_BACKUP": "1"}),
    "peer": (["--short"], {}),
    "plugin": (["--short", "--graphs"], {"TMS_SGLANG": "1"}),
    "plugin-expandable": (
        ["--short", "--graphs"],
        {"TMS_SGLANG": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    ),
}
"""The driver's arguments and environment. "kept": host memory is kept between cycles."""

BESIDE = ("peer", "plugin", "plugin-expandable")
"""Runs with torch_memory_saver itself installed."""

ASKED = os.environ.get("TESTS_SGLANG", ",".join(RUNS)).split(",")


def missing(run: str) -> str:
    """Why a run cannot be made, "" if it can."""
    if run == "two" and torch.cuda.device_count() < 2:
        return "there is one GPU"
    if run in BESIDE and not PEER:
        return "TESTS_PEER names no folder"
    if run.startswith("profile") and not TMS.exists():
        return "the command tms, which reads recordings, is not built"
    return ""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver prints for each run, one after the other."""
    said: dict[str, Any] = {}
    for name in ASKED:
        if missing(name):
            continue
        saver = str(PEER) if name in BESIDE else str(DROPIN)
        paths = [str(HERE)]
        if name.startswith("plugin"):
            found = tmp_path_factory.mktemp("installed")
            installed(found)
            paths += [str(found), str(PYMODULE)]
        variables = dict(RUNS[name][1])
        recordings = tmp_path_factory.mktemp(name)
        if name.startswith("profile"):
            variables["TMS_TRACE"] = str(recordings / "%p.trace")
        process = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "sglang_driver.py"),
                *RUNS[name][0],
                "--tokens",
                str(CACHE_TOKENS),
            ],
            env={**with_saver(saver, *paths), **variables},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=320)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
        finally:  # an engine left over would hold the next one's memory
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        lines = [line for line in out.splitlines() if line.startswith("{")]
        said[name] = json.loads(lines[-1]) if lines else {"ok": False}
        said[name]["status"] = process.returncode
        said[name]["operations"] = operations(sorted(recordings.iterdir()))
    return said


def operations(recordings: list[Path]) -> dict[str, list[dict[str, float]]]:
    """Pauses and resumes of each tag, in their order, as `tms report` prints them."""
    found: dict[str, list[dict[str, float]]] = {}
    if recordings:
        command = [str(TMS), "report", *map(str, recordings), "--format", "perfetto", "-o", "-"]
        report = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        for event in report["traceEvents"]:
            if event["ph"] == "X" and event["args"]["bytes"]:
                found.setdefault(event["name"], []).append(event["args"])
    return found


@pytest.fixture(params=ASKED)
def run(request: pytest.FixtureRequest, results: dict[str, Any]) -> dict[str, Any]:
    if missing(request.param):
        pytest.skip(missing(request.param))
    said: dict[str, Any] = results[request.param]
    assert said["ok"] and said["status"] == 0, {**said, "phases": None}
    assert said["saver"].startswith(str(PEER) if request.param in BESIDE else str(DROPIN))
    assert said["tms"] == (request.param != "peer"), "libtms.so is in the schedulers, or is not"
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


PARTS = {"driver": "the driver's mappings", "copying": "contents", "waited": "waiting"}


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
    """Prints the times; ours are shorter."""
    if not results:
        pytest.skip("none of the runs can be made")
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


@pytest.mark.parametrize("name", [name for name in ASKED if name.startswith("profile")])
def test_profile(results: dict[str, Any], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the time of a release and a resume goes: saving takes the link's time and at most 20
    ms.

    This holds if host memory is kept: making and pinning it takes longer than the link.
    """
    if missing(name):
        pytest.skip(missing(name))
    said = results[name]
    assert said["ok"], {**said, "phases": None}
    later = [i for i, phase in enumerate(said["phases"]) if phase["name"].startswith("later")]
    rows = [(tag, part) for tag in ("kv_cache", "weights") for part in PARTS]
    table = {}
    for what, kind in {"release": "pause", "resume": "resume"}.items():
        asked = [said["phases"][i][f"{what}_s"] for i in later]
        made = {tag: said["operations"][f"{kind} {tag}"] for tag in ("kv_cache", "weights")}
        assert all(len(found) == len(said["phases"]) for found in made.values())
        own = [sum(made[tag][i]["took"] for tag in made) for i in later]
        table[what] = [
            statistics.median(asked),
            statistics.median(all_of_it - ours for all_of_it, ours in zip(asked, own)),
            *(statistics.median(made[tag][i][part] for i in later) for tag, part in rows),
        ]
    limits = said["limits"]
    names = ["asked from outside", "of it outside tms", *(f"{tag}, {PARTS[p]}" for tag, p in rows)]
    with capsys.disabled():
        print(f"\nsglang {said['sglang']}, {name}, ms (medians){'':15}release    resume")
        for row, (release, resume) in zip(names, zip(*table.values())):
            print(f"{row:>45}{1000 * release:10.1f}{1000 * resume:10.1f}")
        words = ", ".join(f"{what} {1000 * seconds:.1f}" for what, seconds in limits.items())
        print(f"{WEIGHTS} GiB on this machine, ms, one after the other: {words}")
    contents = table["release"][2 + rows.index(("weights", "copying"))]
    if name == "profile-kept":
        assert contents <= limits["to the host"] + 0.02
