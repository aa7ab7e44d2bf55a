"""Reinforcement learning: a trainer and an sglang engine take turns on one GPU, for 20 rounds.

TESTS_RL_ROUNDS sets another number, if only times are wanted.

TESTS_PEER is a folder with the unpacked wheel of torch_memory_saver itself: then that runs too,
for four rounds, and every token must be the same with it.
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
from device import MiB, torch_on_gpu, with_saver
from simulator import DROPIN

torch_on_gpu()
if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

HERE = Path(__file__).resolve().parent
SAVERS = {"tms": str(DROPIN)}
if "TESTS_PEER" in os.environ:
    SAVERS["peer"] = os.environ["TESTS_PEER"]
ROUNDS = {"tms": int(os.environ.get("TESTS_RL_ROUNDS", "20")), "peer": 4}


@pytest.fixture(scope="module")
def rounds() -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name, saver in SAVERS.items():
        done = subprocess.run(
            [sys.executable, str(HERE / "rl_driver.py"), "--rounds", str(ROUNDS[name])],
            env=with_saver(saver, str(HERE)),
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        assert lines, f"{name} ended with {done.returncode}"
        said = json.loads(lines[-1])
        assert said["ok"] and said["saver"].startswith(saver), {**said, "rounds": None}
        found[name] = said["rounds"]
        assert len(found[name]) == ROUNDS[name]
    return found


def test_weights_arrive(rounds: dict[str, list[dict[str, Any]]]) -> None:
    ours = [found["tokens"] for found in rounds["tms"]]
    different = len({str(tokens) for tokens in ours})  # the first steps change the tokens little
    assert different > (len(ours) // 2 if len(ours) >= 10 else 1), "each round's weights are new"
    if "peer" in rounds:
        theirs = [found["tokens"] for found in rounds["peer"]]
        assert ours[: len(theirs)] == theirs


def test_nothing_grows(rounds: dict[str, list[dict[str, Any]]]) -> None:
    ours = rounds["tms"]
    if len(ours) < 10:
        pytest.skip("too few rounds to tell")
    for what, limit in {"training": 64 * MiB, "rollout": 64 * MiB, "resident": 512 * MiB}.items():
        grown = ours[-1][what] - max(found[what] for found in ours[2:6])
        assert grown <= limit, f"{what}: {grown / MiB:.0f} MiB"


def test_times(rounds: dict[str, list[dict[str, Any]]], capsys: pytest.CaptureFixture[str]) -> None:
    """Prints them: medians from the second round on."""
    with capsys.disabled():
        print(f"\n{'seconds':15}" + "".join(f"{name:>10}" for name in rounds))
        table = {
            what: [
                statistics.median(found["seconds"][what] for found in rounds[name][1:])
                for name in rounds
            ]
            for what in rounds["tms"][0]["seconds"]
        }
        parts = [what for what in table if what not in ("step", "rollout")]
        table["hand-overs"] = [sum(table[what][i] for what in parts) for i in range(len(rounds))]
        for what, figures in table.items():
            print(f"{what:15}" + "".join(f"{figure:10.3f}" for figure in figures))
        for name, found in rounds.items():
            print(
                f"{name}: {found[-1]['training'] / MiB:.0f} MiB in use while training, "
                f"{found[-1]['rollout'] / MiB:.0f} in the rollout, "
                f"{found[-1]['resident'] / MiB:.0f} resident on the host"
            )
    assert table["hand-overs"][0] > 0
    if "peer" in rounds:
        assert table["hand-overs"][0] < table["hand-overs"][1]
