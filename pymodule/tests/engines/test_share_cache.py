"""Engines that share a device, made as they make themselves (fake/), over the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from following import OBEY, Follower
from likeness import DROPIN, FAKE
from plugin import installed
from simulator import BUILD, HANGS, PYMODULE, environment

TMS = BUILD / "bin" / "tms"
SIZE = 4 << 20  # of the weights; the cache has four times that
VLLM = """
import json, sys
from vllm.v1.engine.core import start
core = start()
def asked(request):
    core.request = request
    return core.step()
def resets():
    return core.scheduler.resets
"""
SGLANG = """
import json, sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.managers.scheduler import Scheduler
scheduler = Scheduler(saves=False)
asked = scheduler.asked
def resets():
    return scheduler.flushes
"""
SAVER = SGLANG.replace("saves=False", "saves=True")
NEWEST = f"""{SGLANG}
from sglang.srt import runtime_context
from sglang.srt.managers.scheduler import UnifiedRadixCache
del scheduler.ps
scheduler.tree_cache = UnifiedRadixCache()
"""
IN_USE = [  # by others, a later request or a session; quick: one of each engine
    f"{VLLM}core.vllm_config.kv_transfer_config = {{}}",
    f"{VLLM}core.scheduler.kv_cache_manager.block_pool.used = 1",
    f"{SGLANG}scheduler.disaggregation_mode.value = 'decode'",
    f"{SGLANG}scheduler.ps.tp_size = 2",
    f"{SGLANG}scheduler.tree_cache = type('HiRadixCache', (), {{'cached': None}})()",
    f"{NEWEST}scheduler.tree_cache.cache_controller = object()",
    f"{NEWEST}scheduler.tree_cache.linker = object()",
    f"{NEWEST}runtime_context.get_parallel().tp_size = 2",
    f"{SGLANG}scheduler.waiting_queue.append(9)",
    f"{SGLANG}scheduler.session_controller.sessions['s'] = None",
]


class Engine(Follower):
    def asked(self, request: int) -> list[bool]:
        """Whether the answer was right, and whether it was cached."""
        answer: list[bool] = json.loads(self.ask(json.dumps(f"asked({request})")))
        return answer

    def resets(self) -> Any:
        """How often the prefix cache was emptied."""
        return json.loads(self.ask(json.dumps("resets()")))


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, str]:
    """The environment of programs of which one fits on the device at a time."""
    installed(tmp_path)
    paths = [PYMODULE, FAKE.parent.parent, FAKE, FAKE.parent / "savers" / "released", tmp_path]
    paths += [DROPIN / name for name in ("fake", "clients")]
    own = {name: value for name, value in environment().items() if name != "LD_PRELOAD"}
    return {
        **own,
        "PYTHONPATH": ":".join(map(str, paths)),
        "CUDASIM_DEVICES": "1",
        "CUDASIM_MEMORY": "32M",
        "CUDASIM_SHARED": f"share-{os.getpid()}",
        "XDG_RUNTIME_DIR": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "TMS_COMMAND": str(TMS),
        "TMS_SGLANG": "1",
    }


@pytest.fixture
def start(settings: dict[str, str]) -> Iterator[Callable[..., Engine]]:
    running: list[Engine] = []

    def started(code: str) -> Engine:
        command = [TMS, "run", "--share", "--", sys.executable, "-c", f"{code}\n{OBEY}"]
        running.append(Engine(command, env=settings))
        return running[-1]

    yield started
    for engine in running:
        engine.kill()


def host_bytes(of: Engine, settings: dict[str, str]) -> int:
    """What the engine's contents take while it is paused."""
    done = subprocess.run(
        [TMS, "ps", str(of.process.pid), "--json"],
        env=settings,
        capture_output=True,
        check=True,
        timeout=HANGS,
    )
    (found,) = json.loads(done.stdout)
    return sum(t["host_bytes"] for d in found["stats"]["devices"] for t in d["tags"])


@pytest.mark.parametrize(
    "code", [VLLM, SGLANG, SAVER, NEWEST], ids=["vllm", "sglang", "saver", "0.5.23"]
)
def test_an_idle_engine_gives_way_without_its_cache(
    code: str, start: Callable[..., Engine], settings: dict[str, str]
) -> None:
    one = start(code)
    assert one.asked(7) == [True, False]
    assert one.asked(7) == [True, True]
    other = start(code)
    assert other.asked(5) == [True, False]
    assert host_bytes(one, settings) < 2 * SIZE
    assert one.asked(7) == [True, False]
    assert one.asked(7) == [True, True]
    assert other.asked(5) == [True, False]
    assert (one.resets(), other.resets()) == (1, 1)


def test_a_cache_that_an_engine_does_not_forget(start: Callable[..., Engine]) -> None:
    """Answers from blocks that are lost would be wrong."""
    one = start(f"{SGLANG}scheduler.flush_cache = lambda: False")
    assert one.asked(7) == [True, False]
    assert start(VLLM).asked(5) == [True, False]
    for _ in range(2):  # also if its caller goes on after the error
        assert "has not forgotten it: answers from it would be wrong" in one.asked(7)


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, marks=[] if i in (1, 8) else pytest.mark.thorough)
        for i, code in enumerate(IN_USE)
    ],
)
def test_a_cache_in_use_is_kept(
    code: str, start: Callable[..., Engine], settings: dict[str, str]
) -> None:
    one = start(code)
    assert one.asked(7) == [True, False]
    assert start(VLLM).asked(5) == [True, False]
    assert host_bytes(one, settings) >= 5 * SIZE
    assert one.asked(7) == [True, True]
    assert one.resets() == 0
