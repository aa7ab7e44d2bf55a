"""sglang with TMS_SGLANG_KEPT=1, in schedulers that are killed and started again, on the simulator.

The rest of what a model in a set is has its tests in test_vllm_kept.py.
"""

from __future__ import annotations

from pathlib import Path

import publishing
import pytest
from likeness import FAKE, methods, parameters, sources
from plugin import installed
from publishing import House, Program, until
from simulator import PYMODULE

house = publishing.house
MiB = 1 << 20
WEIGHTS = 4 * MiB
SAVER = FAKE.parent / "savers" / "released"

PRELUDE = """
import logging, os
from types import SimpleNamespace
logging.basicConfig(filename=os.environ["LOG"])
from sglang.srt.plugins import load_plugins
load_plugins()
import sglang
from sglang.srt import runtime_context
from sglang.srt.model_loader import loader
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater

def start(layered=False, strays=False, **more):
    global runner, model
    hf = SimpleNamespace(architectures=["Llama"], wide=False, to_dict=lambda: {"hidden_size": 5})
    config = SimpleNamespace(model_path="folder/llama", hf_config=hf, dtype="", quantization=None)
    arguments = {"enable_memory_saver": False, "revision": None, "moe_runner_backend": "auto"}
    arguments.update(more)
    given = SimpleNamespace(**arguments)
    if sglang.__version__ == "0.5.23":
        given = SimpleNamespace(resolved=arguments)
        runtime_context.get_context().server_args = given
    runner = ModelRunner(given, config, layered)
    model = runner.model

def contents():
    owned = {}
    for path, module in model.named_modules():
        for name, tensor in {**module._parameters, **module._buffers, **vars(module)}.items():
            if isinstance(tensor, torch.Tensor):
                owned[f"{path}.{name}"] = [tensor.bytes()[0], list(tensor.shape)]
    return owned
"""


class Engines:
    def __init__(self, house: House, place: Path) -> None:
        self._house = house
        installed(place)
        paths = (PYMODULE, PYMODULE / "tests", PYMODULE / "tests" / "kept", FAKE, place, SAVER)
        self._paths = ":".join(map(str, paths))
        self._log = place / "log"

    def process(self, kept: str = "1", trained: str = "0") -> Program:
        program = self._house.program(
            PYTHONPATH=self._paths,
            LOG=str(self._log),
            TMS_SGLANG_KEPT=kept,
            TMS_SGLANG_TRAINED=trained,
        )
        assert program.run(f"exec({PRELUDE!r}, globals())") is None
        return program

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture(params=["0.5.17", "0.5.23"])
def engines(
    house: House,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Engines:
    monkeypatch.setenv("FAKE_SGLANG", request.param)
    for name in ("TMS_SGLANG", "SGLANG_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return Engines(house, tmp_path)


def test_a_killed_scheduler_is_followed_by_one_that_reads_nothing(
    engines: Engines, house: House
) -> None:
    witness = house.program()
    empty = witness.free()
    first = engines.process()
    first.does("start()")
    assert first.run("loader.read") == ["folder/llama"]
    loaded, room = first.run("contents()"), first.run("runner.pre_model_load_memory")
    first.kill()
    until(lambda: witness.free() >= empty - 8 * MiB)
    before = witness.free()
    assert empty - before >= WEIGHTS  # by no process
    second = engines.process()
    second.does("start()")
    assert second.run("loader.read") == [] and second.run("contents()") == loaded
    assert before - witness.free() <= 3 * MiB < WEIGHTS
    assert abs(second.run("runner.pre_model_load_memory") - room) * 2**30 <= 4 * MiB
    other = engines.process()
    other.does("start(moe_runner_backend='triton')")
    assert other.run("loader.read") == ["folder/llama"]
    assert len(house.sets()) == 2


def test_an_update_takes_what_a_trainer_writes(engines: Engines, house: House) -> None:
    trainer = house.program()
    trainer.does(
        "def write(name, value):\n"
        "    with tms.kept(name).next() as w:\n"
        "        [tensor.fill_(value) for tensor in w.values()]"
    )
    for trained in "01":
        engine = engines.process(trained=trained)
        engine.does("start(); updater = WeightUpdater()")
        [name] = [one["name"] for one in house.sets() if not one["replaced"]]
        version = max(one["version"] for one in house.sets())
        before = engine.run("contents()")
        trainer.does(f"write({name!r}, 77)")
        update = (
            "updater.update_weights_from_disk('folder/llama', {!r}, recapture_cuda_graph=False)"
        )
        done, words = engine.run(update.format("tms-keep"))
        assert done and f"version {version + 1}" in words
        assert engine.run("contents()")[".embedding"][0] == 77
        done, words = engine.run(update.format("tms").replace("updater", "WeightUpdater()", 1))
        assert done and "with those of the other model" in words
        done, words = engine.run(update.format("tms-back"))
        assert done and f"version {version} of" in words
        assert engine.run("contents()") == before
        done, words = engine.run(update.format("tms-back"))
        assert not done and "no version before" in words
        assert engine.run(update.format("tms"))[0]
        assert not engine.run(update.format("auto"))[0]
        done, words = engine.run(update.format("tms").replace("folder", "other"))
        assert not done and "reads nothing of 'other/llama'" in words
        engine.kill()
    assert "TMS_SGLANG_TRAINED=1" in engines.process().run("start()")


def test_updates_are_refused(engines: Engines) -> None:
    for _ in range(2):
        engine = engines.process()
        engine.does("start()")
        done, words = engine.run("WeightUpdater().update_weights_from_disk('other', 'auto')")
        assert not done and "shared and cannot be written" in words
        assert "cannot be written" in engine.run("model.load_weights(iter([7]))")
    plain = engines.process(kept="0")
    plain.does("start()")
    assert plain.run("WeightUpdater().update_weights_from_disk('other', 'auto')")[0] is True
    assert plain.run("loader.read") == ["folder/llama"]


@pytest.mark.parametrize("engines", ["0.5.23"], indirect=True)
def test_a_session_of_updates_is_refused(engines: Engines) -> None:
    """It would unpack weights in place; a rank with weights of its own has begun, and waits."""
    begun = (
        "__import__('sglang.srt.managers.scheduler_components.weight_updater', fromlist='x')."
        "SchedulerWeightUpdaterManager().begin_weight_update(None)"
    )
    engine = engines.process()
    engine.does("start()")
    done, words = engine.run(begun)
    assert not done and "shared and cannot be written" in words
    assert engine.run("torch.barriers") == [None]
    distributed = "WeightUpdater().load_weights_from_distributed([])"
    assert "cannot be written" in engine.run(distributed)[1]
    plain = engines.process(kept="0")
    plain.does("start()")
    assert plain.run(begun)[0] is True and plain.run(distributed)[0] is True


@pytest.mark.parametrize("engines", ["0.5.23"], indirect=True)
def test_a_load_beside_the_capture_of_graphs(engines: Engines, house: House) -> None:
    engine = engines.process()
    engine.does("start()")
    before = house.sets()
    engine.does(
        "kind = loader.DefaultModelLoader(None);"
        "kind.initialize_model_for_startup(model_config=runner.model_config, device_config=None)"
    )
    assert "--startup-weight-load-mode overlap keeps nothing" in engines.log()
    assert len(house.sets()) == len(before)


def test_balancing_of_experts_is_refused(engines: Engines, house: House) -> None:
    engine = engines.process()
    assert "cannot be combined with --enable-eplb" in engine.run("start(enable_eplb=True)")
    assert house.sets() == []


def test_other_loaders_and_versions(engines: Engines, house: House) -> None:
    engine = engines.process()
    engine.does("start(layered=True)")
    assert "LayeredModelLoader reads the checkpoint, and nothing is kept" in engines.log()
    engine.does("model.load_weights(iter([7]))")
    assert house.sets() == []
    engine.does("getattr(runtime_context, 'RuntimeContext').resolved_server_args_dict = property()")
    refused = engine.run(
        "ModelRunner(type('Sealed', (), {'__slots__': ('__dict__',)})(), runner.model_config)"
    )
    assert "is for sglang 0.5.16, 0.5.17 and 0.5.23, and this is " in refused


@pytest.mark.parametrize("engines", ["0.5.23"], indirect=True)
@pytest.mark.parametrize("name", ["enable_memory_saver", "revision"])
def test_an_argument_that_is_missing(engines: Engines, name: str) -> None:
    engine = engines.process()
    engine.does(
        "runtime_context.RuntimeContext.resolved_server_args_dict = lambda self: "
        f"{{k: v for k, v in self.server_args.resolved.items() if k != {name!r}}}"
    )
    assert f"and this is 0.5.23: its arguments have no {name!r}. Unset it." in engine.run("start()")


def test_a_part_of_sglang_that_cannot_be_imported(engines: Engines) -> None:
    """The plugin registers its hooks; sglang leaves out those alone that it cannot apply."""
    engine = engines.process()
    engine.does(
        "import sys; from tms import _sglang, _sglang_loader as ours;"
        "from sglang.srt.plugins import hook_registry;"
        "sys.modules[ours._UPDATER.rpartition('.')[0]] = None;"
        "hook_registry.HookRegistry._hooks.clear();"
        "_sglang.register()"
    )
    assert engine.run("f'{ours._RUNNER}.load_model' in hook_registry.HookRegistry._hooks") is True


def test_like_the_sglang_that_is_installed() -> None:
    """Names and signatures match sglang's files."""
    root = sources("sglang")
    sessions = Path("srt", "managers", "scheduler_components", "weight_updater.py")
    if "def begin_weight_update(self" in (root / sessions).read_text():  # 0.5.23
        manager = methods(root / sessions, "SchedulerWeightUpdaterManager")
        assert manager["begin_weight_update"] == [("self", ""), ("recv_req", "")]
        assert "self.tp_cpu_group = " in (root / sessions).read_text()
    loader = Path("srt", "model_loader", "loader.py")
    for name in ("_initialize_model", "_get_quantization_config"):
        assert parameters(FAKE / "sglang" / loader, name) == parameters(root / loader, name)
    runner = Path("srt", "model_executor", "model_runner.py")
    updater = Path("srt", "model_executor", "model_runner_components", "weight_updater.py")
    for file, name in [(loader, "DefaultModelLoader"), (updater, "WeightUpdater")]:
        there = methods(root / file, name)
        for method, found in methods(FAKE / "sglang" / file, name).items():
            assert found == there[method], f"{name}.{method}"
    assert methods(root / runner, "ModelRunner")["load_model"] == [("self", "")]
    text = (root / runner).read_text()
    assert "pre_model_load_memory=self.pre_model_load_memory" in text
    assert "self.server_args = server_args" in text
    assert "set_default_torch_dtype,\n" in (root / loader).read_text()
