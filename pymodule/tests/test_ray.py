"""tms.ray: actors on two nodes of one machine, which share two simulated devices."""

from __future__ import annotations

import concurrent.futures
import functools
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulator import HANGS, PYMODULE, environment

import tms
import tms.ray

ray = pytest.importorskip("ray")
pytest.importorskip("ray.cluster_utils")
pytestmark = pytest.mark.thorough

HOST = socket.gethostname()
MiB = 1 << 20
SIZE = 40 * MiB
"""Part of a device's 64 MiB, so that one actor's memory fits, but not two."""

pause, resume, paused, lend = (
    functools.partial(function, timeout=HANGS)
    for function in (tms.ray.pause, tms.ray.resume, tms.ray.paused, tms.ray.lend)
)
"""A busy machine may take longer than the usual minute."""


def logs() -> str:
    """The ends of the logs of Ray's processes: its error does not say why a node did not start."""
    found = Path(tempfile.gettempdir()).glob("ray/session_2*/logs/*.*")
    files = [path for path in sorted(found) if path.is_file()]
    texts = {str(path): path.read_text(errors="replace")[-1500:] for path in files}
    return "\n".join(f"== {path}\n{text}" for path, text in texts.items() if text)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray._private import services
    from ray.cluster_utils import Cluster

    find, wait = services.get_node, services.wait_for_node

    def get_node(*which: Any) -> Any:
        """Ray looks for its node for 30 s, within which a busy machine may start none."""
        until = time.monotonic() + HANGS
        while True:
            try:
                return find(*which)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", get_node)
        patch.setattr(services, "wait_for_node", lambda to, name, _: wait(to, name, HANGS))
        for name in (
            "gcs_server_port_wait_time_s",
            "gcs_rpc_server_connect_timeout_s",
            "gcs_server_request_timeout_seconds",
            "raylet_start_wait_time_s",
            "worker_register_timeout_seconds",
        ):
            patch.setenv(f"RAY_{name}", str(round(HANGS)))
        for name in ("agent_register_timeout_ms", "health_check_timeout_ms"):
            patch.setenv(f"RAY_{name}", str(round(1000 * HANGS)))
        patch.delenv("LD_PRELOAD")  # of Ray's own processes
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_prestart_worker_first_driver", "0")  # which no actor of these would use
        small = {"num_cpus": 8, "object_store_memory": 80 * MiB}
        try:
            made = Cluster(
                initialize_head=True,
                head_node_args={**small, "include_dashboard": False, "resources": {"node0": 8}},
            )
            made.add_node(**small, resources={"node1": 8})
        except Exception as failed:
            raise AssertionError(logs()) from failed
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


class Holder:
    """Has memory on a device, and holds contents in it."""

    def __init__(self, place: int, number: int) -> None:
        import cuda

        from tms._together import Part

        self.number = number
        self.steps = Part.check, Part.do
        cuda.set_device(place)

    def allocate(self) -> None:
        import cuda

        with tms.region("weights", backup="host"):
            self.memory = cuda.malloc(SIZE)
        cuda.write(self.memory, b"number %d" % self.number)

    def state(self) -> tuple[int, bool]:
        """Bytes that it holds, and whether the contents are right."""
        import cuda

        tags = [tag for device in tms.stats()["devices"] for tag in device["tags"]]
        held = sum(tag["physical_bytes"] for tag in tags)
        return held, held == 0 or cuda.read(self.memory, 8) == b"number %d" % self.number

    def process(self) -> int:
        return os.getpid()

    def run(self, code: str) -> None:
        exec(code, {"self": self})  # noqa: S102

    def heal(self) -> None:
        """Takes back what a test has made of the steps of a pause."""
        from tms._together import Part

        Part.check, Part.do = self.steps  # type: ignore[method-assign]

    def asked(self) -> bool:
        """Whether a caller has begun to pause or resume it."""
        return bool(tms.ray._parts)

    def wait_for(self, file: str) -> None:
        while not os.path.exists(file):
            time.sleep(0.01)


def actors(device: str, first: int = 0) -> list[Any]:
    """An actor on each node, with the numbers from the first."""
    variables = environment()
    passed = {
        name: variables[name]
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDASIM_DEVICES", "TESTS_ON")
    }
    passed["PYTHONPATH"] = f"{PYMODULE}:{Path(__file__).parent}"
    passed["CUDASIM_MEMORY"] = "64M"
    passed["CUDASIM_SHARED"] = f"ray-{os.getpid()}-{device}"
    actor = ray.remote(num_cpus=1, runtime_env={"env_vars": passed})(Holder)
    return [
        actor.options(resources={f"node{node}": 1}).remote(node, first + node) for node in range(2)
    ]


@pytest.fixture
def mortal(cluster: Any, tmp_path: Path) -> Iterator[list[Any]]:
    """For tests in which one dies."""
    made = actors(tmp_path.name)
    ray.get([each.allocate.remote() for each in made])
    yield made
    for each in made:
        ray.kill(each)


@pytest.fixture(scope="module")
def groups(cluster: Any) -> tuple[list[Any], list[Any]]:
    """A trainer and a rollout actor on each node, at the same device; the trainers are paused.

    Each test leaves them so.
    """
    trainers, rollouts = actors("lasting"), actors("lasting", 2)
    ray.get([each.allocate.remote() for each in trainers])
    assert pause(trainers) == 2 * SIZE
    ray.get([each.allocate.remote() for each in rollouts])
    return trainers, rollouts


def states(actors: list[Any]) -> list[tuple[int, bool]]:
    return [tuple(each) for each in ray.get([actor.state.remote() for actor in actors])]


ACTIVE, PAUSED = [(SIZE, True)] * 2, [(0, True)] * 2


def test_pause_and_lend(groups: Any) -> None:
    trainers, rollouts = groups
    assert states(trainers + rollouts) == PAUSED + ACTIVE
    for _ in range(3):
        with lend(from_=rollouts, to=trainers):
            assert states(trainers + rollouts) == ACTIVE + PAUSED
        assert states(trainers + rollouts) == PAUSED + ACTIVE
    with pytest.raises(KeyError), lend(from_=rollouts, to=trainers):
        raise KeyError
    assert states(trainers + rollouts) == PAUSED + ACTIVE
    with paused(rollouts, "weights"):
        assert states(rollouts) == PAUSED
        assert resume(trainers, "weights") == 2 * SIZE
        assert pause(trainers) == 2 * SIZE
    assert states(rollouts) == ACTIVE
    # The trainers' memory does not fit beside the rollouts', so nothing has changed.
    with pytest.raises(tms.GroupError, match=r"resuming all tags on 2 actors failed, and all") as e:
        resume(trainers)
    assert "are needed" in str(e.value) and "cudaError 2" in str(e.value)
    assert states(trainers + rollouts) == PAUSED + ACTIVE


def test_one_that_cannot(groups: Any) -> None:
    trainers, rollouts = groups
    ray.get(rollouts[1].run.remote("import cuda; cuda.fail('cuMemUnmap', 1, 999)"))
    with pytest.raises(tms.GroupError) as caught:
        pause(rollouts)
    assert re.search(
        rf"pausing all tags on 2 actors failed, and all that live are as before\. "
        rf"actor 1 Actor\(Holder, \w+\) on {HOST}: .*cudaError 999",
        str(caught.value),
    )
    assert (caught.value.rank, caught.value.host, caught.value.code) == (1, HOST, 999)
    assert states(rollouts) == ACTIVE
    ray.get(rollouts[0].run.remote("import cuda; self.c = cuda.Capture(); self.c.__enter__()"))
    with pytest.raises(tms.GroupError, match=r"actor 0 .*a stream is being captured"):
        pause(rollouts)
    ray.get(rollouts[0].run.remote("self.c.__exit__()"))
    # The borrower cannot take the memory: the lender gets its own back.
    ray.get(trainers[1].run.remote("import cuda; cuda.fail('cuMemCreate', 1, 2)"))
    with (
        pytest.raises(tms.GroupError, match=r"actor 1 "),
        lend(from_=rollouts, to=trainers),
    ):
        raise AssertionError("the body does not run")
    assert states(trainers + rollouts) == PAUSED + ACTIVE


def test_one_that_is_busy(groups: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, rollouts = groups
    idle, go = tmp_path / "idle", tmp_path / "go"
    busy = rollouts[0].wait_for.remote(str(idle))
    with pytest.raises(tms.GroupError, match=r"actor 0 .* has not answered within 0\.5 s"):
        tms.ray.pause(rollouts, timeout=0.5)
    idle.touch()
    assert ray.get(rollouts[1].state.remote()) == (SIZE, True)
    ray.get(busy)
    assert pause(rollouts) == 2 * SIZE
    resume(rollouts)
    # In the middle of a pause: what the actor does late, it also undoes.
    slow = f"t.Part.do = lambda part: (self.wait_for({str(go)!r}), do(part))[1]"
    slow = f"import tms._together as t; do = t.Part.do; {slow}"
    ray.get(rollouts[0].run.remote(slow))
    ask = tms.ray._Calls._all

    def soon(calls: Any, function: Any, *given: Any) -> list[Any]:
        """Both have begun, however busy the machine is; then one does not answer."""
        calls._timeout = HANGS if function is tms.ray._check else 0.5
        return ask(calls, function, *given)

    monkeypatch.setattr(tms.ray._Calls, "_all", soon)
    with pytest.raises(tms.GroupError, match=r"late ones until they come to it \(actor 0 "):
        pause(rollouts)
    monkeypatch.undo()
    go.touch()
    assert states(rollouts) == ACTIVE
    ray.get(rollouts[0].heal.remote())


FAILING = """
import tms._together as t, os, time
def wait():
    while not os.path.exists({go!r}):
        time.sleep(0.01)
check = t.Part.check
def held(part):
    wait()
    return check(part)
def do(part):
    wait()
    raise RuntimeError("told to fail")
t.Part.{method} = {function}
t.Part.do = do
"""


def test_two_callers(groups: Any, tmp_path: Path) -> None:
    """Each undoes only what it has done, whatever the other does at the same time."""
    trainers, (shared, failing) = groups

    def start(method: str, function: str) -> tuple[Any, Path]:
        """A caller whose second actor waits in a step, and then fails."""
        go = tmp_path / method
        ray.get(failing.heal.remote())
        code = FAILING.format(go=str(go), method=method, function=function)
        ray.get(failing.run.remote(code))
        return callers.submit(pause, [shared, failing]), go

    def is_over(call: Any) -> None:
        with pytest.raises(tms.GroupError, match="all that live are as before.*told to fail"):
            call.result()

    with concurrent.futures.ThreadPoolExecutor() as callers:
        # The other only checks while the first is about to fail.
        first, go = start("do", "do")
        while ray.get(shared.state.remote()) != (0, True):
            time.sleep(0.01)
        ray.get(trainers[1].run.remote("import cuda; self.c = cuda.Capture(); self.c.__enter__()"))
        with pytest.raises(tms.GroupError, match="a stream is being captured"):
            resume([shared, trainers[1]])
        ray.get(trainers[1].run.remote("self.c.__exit__()"))
        go.touch()
        is_over(first)
        assert states([shared, failing]) == ACTIVE

        # The other has paused it between the first's two steps.
        first, go = start("check", "held")
        while not ray.get(shared.asked.remote()):
            time.sleep(0.01)
        assert pause([shared]) == SIZE
        go.touch()
        is_over(first)
        assert states([shared, failing]) == [(0, True), (SIZE, True)]
        assert not ray.get(shared.asked.remote()), "what is over is forgotten"
    ray.get(failing.heal.remote())
    assert resume([shared]) == SIZE


@pytest.mark.parametrize("when", ["before it", "in the middle of it"])
def test_an_actor_dies(mortal: list[Any], when: str) -> None:
    if when == "before it":
        ray.kill(mortal[1])
    else:
        end = "import tms._together as t, os; t.Part.do = lambda p: os._exit(1)"
        ray.get(mortal[1].run.remote(end))
    with pytest.raises(tms.GroupError, match=r"actor 1 .*: it has died, or cannot be") as caught:
        pause(mortal)
    assert "all that live are as before" in str(caught.value)
    assert caught.value.host in ("", HOST)  # a killed actor may still say where it is
    assert ray.get(mortal[0].state.remote()) == (SIZE, True)
    assert pause(mortal[:1]) == SIZE


def test_arguments(groups: Any) -> None:
    _, rollouts = groups
    for call, words in {
        lambda: pause([]): "actors must have at least one actor",
        lambda: pause(rollouts * 2): "actors must have each actor once",
        lambda: pause(rollouts, ""): "tag must not be empty",
        lambda: tms.ray.resume(rollouts, timeout=0): "timeout must be a number of seconds",
        lambda: lend(from_=rollouts, to=rollouts[:1]): "from_ and to have one in common",
    }.items():
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="actors must have handles of Ray actors alone, and has"):
        pause([1])


def test_a_node_dies(cluster: Any, mortal: list[Any]) -> None:
    """The last test: the node does not come back."""
    process = ray.get(mortal[1].process.remote())
    node = next(iter(cluster.worker_nodes))
    cluster.remove_node(node, allow_graceful=False)
    until = time.monotonic() + HANGS
    while os.path.exists(f"/proc/{process}") and time.monotonic() < until:
        time.sleep(0.01)  # the node ends when it notices
    with pytest.raises(tms.GroupError, match=r"actor 1 Actor\(Holder, \w+\).*: it has") as caught:
        pause(mortal)
    assert "all that live are as before" in str(caught.value)
    assert ray.get(mortal[0].state.remote()) == (SIZE, True)
