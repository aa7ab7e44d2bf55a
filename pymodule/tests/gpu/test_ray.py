"""tms.ray: a trainer and a rollout server on each GPU; both together do not fit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu

import tms
import tms.ray

torch = torch_on_gpu()
pytestmark = pytest.mark.several_gpus
ray = pytest.importorskip("ray", reason="Ray is not installed")

HERE = Path(__file__).resolve().parent
TURNS = 5
SHARE = 0.55
"""The share of a device for each one's working memory."""
GPUS = torch.cuda.device_count()


@pytest.fixture(scope="module")
def bundles() -> Iterator[list[Any]]:
    """Options that put an actor on each GPU, as verl and slime place both of their kinds."""
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LD_PRELOAD")  # of Ray's own processes
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        ray.init(
            num_cpus=4 * GPUS,
            num_gpus=GPUS,
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=True,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",  # there may be no network
        )
        group = placement_group([{"GPU": 1, "CPU": 4}] * GPUS)
        ray.get(group.ready(), timeout=60)
        yield [PlacementGroupSchedulingStrategy(group, index) for index in range(GPUS)]
        ray.shutdown()


def started(bundles: list[Any], first: int) -> list[Any]:
    """An actor for each GPU, with half of it by Ray's count."""
    sys.path.insert(0, str(HERE / "programs"))
    from lending import Model

    sys.path.remove(str(HERE / "programs"))
    variables = {
        "LD_PRELOAD": tms.library_path(),
        "PYTHONPATH": f"{HERE.parents[1]}:{HERE / 'programs'}:{os.environ.get('PYTHONPATH', '')}",
        "TMS_RETAIN_CPU_BACKUP": "1",
    }
    kind = ray.remote(num_gpus=0.5, num_cpus=1, runtime_env={"env_vars": variables})(Model)
    return [
        kind.options(scheduling_strategy=bundle).remote(first + number, SHARE)
        for number, bundle in enumerate(bundles)
    ]


def said(actors: list[Any], what: str, *arguments: Any) -> list[Any]:
    return list(ray.get([getattr(each, what).remote(*arguments) for each in actors], timeout=120))


def test_lending(bundles: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    trainers = started(bundles, 0)
    undisturbed = [said(trainers, "step") for _ in range(TURNS + 1)]
    assert len({tuple(losses) for losses in undisturbed}) == TURNS + 1
    for number, trainer in enumerate(trainers):
        ray.get(trainer.begin.remote(number))
    whole = said(trainers, "held")
    assert tms.ray.pause(trainers) == sum(whole)
    rollouts = started(bundles, 100)
    generated = said(rollouts, "generate")
    devices = [[device for device, _ in said(each, "place")] for each in (trainers, rollouts)]
    assert devices[0] == devices[1] and len(set(devices[0])) == GPUS
    assert said(rollouts, "held") == whole

    losses, seconds = [], []
    for _ in range(TURNS):
        begun = time.perf_counter()
        with tms.ray.lend(from_=rollouts, to=trainers):
            lent = time.perf_counter()
            assert said(rollouts, "held") == [0] * GPUS and said(trainers, "held") == whole
            losses.append(said(trainers, "step"))
            back = time.perf_counter()
        seconds.append((round(lent - begun, 3), round(time.perf_counter() - back, 3)))
        assert said(trainers, "held") == [0] * GPUS and said(rollouts, "held") == whole
        assert said(rollouts, "generate") == generated
    assert losses == undisturbed[:TURNS]
    with capsys.disabled():
        gib = sum(whole) / (1 << 30)
        print(f"\n{GPUS} GPUs, {gib:.1f} GiB of each kind: seconds to lend, and back: {seconds}")

    # The two do not fit together, so nothing has changed. Then a rollout server dies, and is named.
    with pytest.raises(tms.GroupError, match=r"are needed \(cudaError 2\)"):
        tms.ray.resume(trainers)
    last = GPUS - 1
    process = ray.get(rollouts[last].place.remote())[1]
    ray.kill(rollouts[last])
    with (
        pytest.raises(tms.GroupError, match=rf"actor {last} .*it has died, or cannot be") as caught,
        tms.ray.lend(from_=rollouts, to=trainers),
    ):
        raise AssertionError("the body does not run")
    assert "all that live are as before" in str(caught.value)
    assert said(rollouts[:last], "held") == whole[:last] and said(trainers, "held") == [0] * GPUS
    until = time.monotonic() + 60
    while os.path.exists(f"/proc/{process}") and time.monotonic() < until:
        time.sleep(0.05)  # its memory stays until it has ended
    if last:
        tms.ray.pause(rollouts[:last])
    assert tms.ray.resume(trainers) == sum(whole)
    assert said(trainers, "step") == undisturbed[TURNS]
