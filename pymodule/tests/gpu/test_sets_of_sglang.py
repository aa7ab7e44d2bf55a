"""sglang with TMS_SGLANG_KEPT=1: an engine is killed, and the next one attaches its weights.

With -s the seconds of starts are printed, beside those of one that reads the checkpoint from the
page cache. TESTS_PEER is as in test_sglang.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keeping
import pytest
from device import torch_on_gpu, with_saver
from keeping import GIB, HERE, PYMODULE, Engine
from simulator import DROPIN
from test_sets import command

torch = torch_on_gpu()
if importlib.util.find_spec("sglang") is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

PEER = os.environ.get("TESTS_PEER")
KEPT = {"TMS_SGLANG_KEPT": "1"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from keeping.checkpoint(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def engines(place: Path) -> Iterator[Any]:
    saver = with_saver(PEER or str(DROPIN), str(place), str(PYMODULE), str(HERE))

    def start(*arguments: object, **variables: str) -> Engine:
        path = saver["PYTHONPATH"]
        driver = "sglang_kept_driver.py"
        return Engine(driver, place / "model", *arguments, PYTHONPATH=path, **variables)

    yield from keeping.one_after_another(start)


def test_a_killed_engine_is_followed_by_another(engines: Any, place: Path) -> None:
    def attaches() -> Engine:
        with keeping.without_weights(place / "model"):
            return engines(**KEPT)

    started = keeping.compare(
        {
            "reads, publishes": lambda: engines(**KEPT),
            "reads": lambda: engines(),
            "attaches": attaches,
        }
    )
    assert len(json.loads(command("kept", "--json"))) == 1
    engine = started["attaches"]
    told = engine.says("tokens")
    refused = engine.says("update")
    assert refused["done"] is False and "cannot be written" in refused["words"]
    assert engine.says("tokens") == told


def test_release_and_resume(engines: Any) -> None:
    """The cache goes and weights stay, in the first engine and in a later one."""
    told = []
    for _ in range(2):
        engine = engines("--saver", TMS_SGLANG="1", **KEPT)
        told.append(engine.says("tokens"))
        for _ in range(2):
            assert engine.says("release")["freed"] > 10 * GIB
            assert engine.says("resume") == {}
            told.append(engine.says("tokens"))
    assert all(one == told[0] for one in told)
