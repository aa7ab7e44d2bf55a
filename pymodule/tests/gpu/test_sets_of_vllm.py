"""vLLM's load format "tms": an engine is killed, and the next one attaches its weights.

With -s the seconds of starts are printed, beside those of one that reads the checkpoint from the
page cache. With TESTS_SETS=all, it takes a minute more than the usual four.
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
from device import torch_on_gpu
from keeping import GIB, HERE, PYMODULE, Engine
from test_sets import command

torch = torch_on_gpu()
if importlib.util.find_spec("vllm") is None:
    pytest.skip("vLLM is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from keeping.checkpoint(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def engines(place: Path) -> Iterator[Any]:
    paths = [str(place), str(PYMODULE), str(HERE), os.environ.get("PYTHONPATH", "")]

    def start(*arguments: object, **variables: str) -> Engine:
        path = ":".join(paths)
        driver = "vllm_kept_driver.py"
        return Engine(driver, place / "model", *arguments, PYTHONPATH=path, **variables)

    yield from keeping.one_after_another(start)


def test_a_killed_engine_is_followed_by_another(engines: Any, place: Path) -> None:
    def attaches() -> Engine:
        with keeping.without_weights(place / "model"):
            return engines("tms")

    started = keeping.compare(
        {
            "reads, publishes": lambda: engines("tms"),
            "reads": lambda: engines("safetensors"),
            "attaches": attaches,
        }
    )
    assert len(json.loads(command("kept", "--json"))) == 1
    engine = started["attaches"]
    told = engine.says("tokens")
    assert "cannot be written" in engine.says("reload")["error"]
    assert engine.says("tokens") == told
    engine = engines("tms", "--extra", '{"copy": true}')
    assert engine.says("tokens") == told
    assert engine.says("reload") == {}
    assert engine.says("tokens") == told


@pytest.mark.parametrize("preloaded", [False, pytest.param(True, marks=keeping.AT_LENGTH)])
def test_sleep(engines: Any, preloaded: bool) -> None:
    """Both levels give the cache back and keep weights, in the first engine and in a later one."""
    variables = {"LD_PRELOAD": os.environ["LD_PRELOAD"]} if preloaded else {}
    extra = json.dumps({"name": f"sleeps-{preloaded}"})
    told = []
    for _ in range(2):
        engine = engines("tms", "--sleep", "--extra", extra, **variables)
        told.append(engine.says("tokens"))
        for level in (1, 2, 1):
            assert engine.says(f"sleep {level}")["freed"] > 10 * GIB
            assert engine.says("wake") == {}
            told.append(engine.says("tokens"))
    assert all(one == told[0] for one in told)
