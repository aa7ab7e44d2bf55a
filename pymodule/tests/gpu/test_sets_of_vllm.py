"""vLLM's load format "tms": an engine is killed, and the next one attaches its weights.

With -s the seconds of starts are printed, beside those of one that reads the checkpoint from the
page cache. It takes about six minutes.
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

COPY = ["--extra", '{"copy": true}']


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


def test_a_killed_engine_is_followed_by_another(engines: Any) -> None:
    seconds = keeping.compare(
        {
            "reads": lambda: engines("safetensors"),
            "reads, publishes": lambda: engines("tms"),
            "attaches": lambda: engines("tms"),
            "attaches again": lambda: engines("tms"),
            "reads (page cache warm)": lambda: engines("safetensors"),
        }
    )
    assert len(json.loads(command("kept", "--json"))) == 1
    assert seconds["attaches"] < seconds["reads (page cache warm)"]


@pytest.mark.parametrize("preloaded", [False, True])
def test_sleep(engines: Any, preloaded: bool) -> None:
    """Both levels give the cache back and keep weights, in the first engine and in a later one."""
    variables = {"LD_PRELOAD": os.environ["LD_PRELOAD"]} if preloaded else {}
    told = []
    for _ in range(2):
        engine = engines("tms", "--sleep", **variables)
        told.append(engine.says("tokens"))
        for level in (1, 2, 1):
            assert engine.says(f"sleep {level}")["freed"] > 10 * GIB
            assert engine.says("wake") == {}
            told.append(engine.says("tokens"))
    assert all(one == told[0] for one in told)


def test_writing_is_refused_or_has_a_copy(engines: Any) -> None:
    engine = engines("tms")
    told = engine.says("tokens")
    assert "cannot be written" in engine.says("reload")["error"]
    assert engine.says("tokens") == told
    engine = engines("tms", *COPY)
    assert engine.says("tokens") == told
    assert engine.says("reload") == {}
    assert engine.says("tokens") == told
