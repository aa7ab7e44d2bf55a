"""vLLM's load format "tms", in workers that are killed and started again, over the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import publishing
import pytest
from likeness import DROPIN, FAKE, methods, parameters, sources
from plugin import installed
from publishing import House, Program, until
from simulator import DEVICE_MEMORY, PYMODULE

house = publishing.house
MiB = 1 << 20

PRELUDE = """
import dataclasses, logging, os
from types import SimpleNamespace
logging.basicConfig(filename=os.environ["LOG"])
from vllm.plugins import load_general_plugins
load_general_plugins()
from vllm.model_executor import model_loader
from vllm.v1.worker.gpu_worker import Worker

@dataclasses.dataclass
class LoadConfig:
    load_format: str = "tms"
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    device: object = None

def config(extra=(), rank=0, wide=False, strays=False, own_head=None, **more):
    hf = SimpleNamespace(architectures=["Llama"], wide=wide, strays=strays, own_head=own_head)
    hf.to_dict = lambda: {"hidden_size": 5}
    model = dict(model="folder/llama", revision=None, hf_config=hf, dtype="bfloat16")
    model.update(quantization=None, enable_sleep_mode=False, sleep_mode_backend="cumem")
    parallel = dict(world_size=1, rank=rank)
    cache = SimpleNamespace(gpu_memory_utilization=0.9, cache_dtype="auto")
    for holder in (model, parallel):
        holder.update({name: more.pop(name) for name in list(more) if name in holder})
    parallel.update(more)
    return SimpleNamespace(
        model_config=SimpleNamespace(**model), parallel_config=SimpleNamespace(**parallel),
        load_config=LoadConfig(model_loader_extra_config=dict(extra)), cache_config=cache,
        device_config=SimpleNamespace(device="cuda"), speculative_config=None, lora_config=None,
    )

def start(*arguments, **more):
    global worker, model
    worker = Worker(config(*arguments, **more), 0, more.get("rank", 0), "")
    worker.init_device()
    model = worker.load_checkpoint()

def contents():
    owned = {}
    for path, module in model.named_modules():
        places = {**module._parameters, **module._buffers, **vars(module)}
        places.update({f"list {i}": one for i, one in enumerate(getattr(module, "derived", []))})
        for name, tensor in places.items():
            if isinstance(tensor, torch.Tensor):
                shape = list(tensor.shape)
                owned[f"{path}.{name}"] = [tensor.bytes()[0], shape, str(tensor.device)]
        owned[f"{path}.factor"] = getattr(module, "factor", None)
    return owned

def writes(tensor):
    tensor.as_strided((1,), (1,)).copy_(tensor.as_strided((1,), (1,)))
"""
WEIGHTS = 4 * MiB
ROOM = 6 * MiB
"""Less than the model has before its layers are prepared, with what each process copies."""


class Engines:
    def __init__(self, house: House, place: Path) -> None:
        self._house = house
        installed(place)
        paths = (PYMODULE, PYMODULE / "tests", PYMODULE / "tests" / "kept", FAKE, place)
        self._paths = ":".join(map(str, (*paths, DROPIN / "clients")))
        self._log = place / "log"

    def process(self, **variables: str) -> Program:
        program = self._house.program(PYTHONPATH=self._paths, LOG=str(self._log), **variables)
        assert program.run(f"exec({PRELUDE!r}, globals())") is None
        return program

    def log(self) -> str:
        return self._log.read_text()


@pytest.fixture(params=[pytest.param("0.26.0", marks=pytest.mark.thorough), "0.33.0"])
def engines(
    house: House, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engines]:
    monkeypatch.setenv("FAKE_VLLM", request.param)
    for name in ("TMS_VLLM", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    yield Engines(house, tmp_path)


@pytest.mark.parametrize("preloaded", [True, False])
def test_a_killed_engine_is_followed_by_one_that_reads_nothing(
    engines: Engines, house: House, preloaded: bool
) -> None:
    witness = house.program()
    empty = witness.free()
    variables = {} if preloaded else {"LD_PRELOAD": ""}
    first = engines.process(**variables)
    first.does("start()")
    assert first.run("model_loader.read") == ["folder/llama"]
    loaded = first.run("contents()")
    assert loaded[".embedding"][0] == 3 and loaded["0.list 0"][0] == 7
    imported = "[str(__import__('tables').table.device), __import__('tables').table.bytes()[0]]"
    assert first.run(imported) == ["cpu:0", 5]
    room = first.run("worker.requested_memory")
    first.kill()
    until(lambda: witness.free() >= empty - 8 * MiB)
    held = empty - witness.free()
    assert held >= WEIGHTS  # by no process
    engine = engines.process(**variables)
    before = witness.free()
    engine.does("start()")
    assert before - witness.free() <= 3 * MiB < WEIGHTS  # only what is not shared
    assert engine.run("model_loader.read") == []
    assert engine.run("contents()") == loaded
    assert engine.run(imported) == ["cpu:0", 5]
    assert engine.run("model_loader.reload.recorded[-1]") == "cuda:0"
    assert engine.run("model.flag and model._parameters['head'] is model._parameters['embedding']")
    assert engine.run("model._modules['0'].impl[0] is model._parameters['embedding']")
    assert WEIGHTS <= room - engine.run("worker.requested_memory") <= held
    beside = engines.process()
    beside.does("start()")
    assert beside.run("contents()") == loaded


NEXT = """
def write(name, value):
    with tms.kept(name).next() as w:
        for tensor in w.values():
            tensor.fill_(value)
        return sorted(w)
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_an_engine_takes_what_a_trainer_writes(
    engines: Engines, house: House, preloaded: bool
) -> None:
    trainer = house.program()
    trainer.does(NEXT)
    for trained in (False, True):  # the first has published, the second attaches
        engine = engines.process(**({} if preloaded else {"LD_PRELOAD": ""}))
        engine.does(f"start({{'trained': {trained}}})")
        [(name, version)] = engine.run("list(worker.tms_sets().items())")
        before = engine.run("contents()")
        written = trainer.run(f"write({name!r}, 77)")
        assert "embedding" in written and "/" not in "".join(written)
        assert engine.run("contents()") == before
        assert engine.run("worker.tms_advance(back=True)") == version + 1
        after = engine.run("contents()")
        assert after[".embedding"][0] == after[".head"][0] == 77
        changed = {one for one in before if before[one] != after[one]}
        assert {one.strip(".") for one in changed} >= set(written) - {"head"}
        assert engine.run("worker.tms_back()") == version
        assert engine.run("contents()") == before
        assert engine.run("worker.tms_advance()") == version + 1
        assert "no version before" in engine.run("worker.tms_back()")
        trainer.does(f"write({name!r}, 78) and None")
        assert engine.run("worker.tms_advance(), worker.tms_sets()") == [
            version + 2,
            {name: version + 2},
        ]
        assert engine.run("contents()")[".embedding"][0] == 78
        engine.kill()
    private = engines.process()
    private.does("start({'copy': True, 'trained': True})")
    assert "no weights in a set" in private.run("worker.tms_advance()")


def test_an_engine_that_sleeps_takes_the_newest(engines: Engines, house: House) -> None:
    trainer, engine = house.program(), engines.process()
    trainer.does(NEXT)
    engine.does("start()")
    [name] = engine.run("list(worker.tms_sets())")
    trainer.does(f"write({name!r}, 5) and None")
    engine.run("tms.pause()")
    assert engine.run("worker.tms_advance()") == 2
    engine.run("tms.resume()")
    assert engine.run("contents()")[".embedding"][0] == 5


def test_layers_that_have_computed_weights_are_refused(engines: Engines, house: House) -> None:
    engine = engines.process()
    engine.does("start()")
    engine.does(
        "from tms import _kept_model; from tms._kept_set import Set; "
        "[one] = _kept_model.following(); "
        "has = one.manifest(); has['tensors']['0/W_UV'] = {}; Set.manifest = lambda self: has"
    )
    assert "computed 0/W_UV and others of the weights" in engine.run("worker.tms_advance()")


def test_models_that_are_gone_are_not_followed(engines: Engines, house: House) -> None:
    trainer = house.program()
    trainer.does(NEXT)
    engine = engines.process()
    engine.does("import gc")
    for name in ("one", "two"):
        engine.does(f"start({{'name': {name!r}}})")
        [full] = engine.run("list(worker.tms_sets())")
        assert full.startswith(name)
        if name == "one":
            engine.does("del worker, model; gc.collect()")
            until(lambda: [one["users"] for one in house.sets()] == [[]])
            house.move("drop", full)
    trainer.does(f"write({full!r}, 9) and None")
    assert engine.run("worker.tms_advance()") == 2
    assert engine.run("contents()")[".embedding"][0] == 9


def test_a_start_serves_what_a_trainer_has_written_if_asked(engines: Engines, house: House) -> None:
    engine, trainer = engines.process(), house.program()
    engine.does("start()")
    [name] = engine.run("list(worker.tms_sets())")
    trainer.does(NEXT)
    trainer.does(f"write({name!r}, 77) and None")
    refused = engines.process().run("start()")
    assert f"Version 2 of the set {name!r} was written by a trainer" in refused
    assert """'{"trained": true}'""" in refused and f"`tms kept drop {name}`" in refused
    other = engines.process()
    other.does("start({'trained': True})")
    assert other.run("contents()")[".embedding"][0] == 77
    assert other.run("model_loader.read") == []
    for each in (engine, other):
        each.kill()
    house.kill_keeper()
    late = engines.process()
    late.does("start({'trained': True})")
    assert late.run("contents()")[".embedding"][0] == 3
    assert "no trainer's weights are there; the checkpoint's are read" in engines.log()


def test_an_attach_needs_room_for_one_layer(engines: Engines, house: House) -> None:
    first = engines.process()
    first.does("start()")
    first.kill()
    engine = engines.process()
    engine.does("config(); torch.empty(1)")
    witness = house.program()
    witness.does(f"ballast = torch.empty({(witness.free() - ROOM) // 4})")
    assert witness.free() == ROOM
    engine.does("Worker.init_device = lambda self: None; start()")
    assert engine.run("[model_loader.read, model._parameters['embedding'].bytes()[0]]") == [[], 3]


def test_what_is_shared_cannot_be_written(engines: Engines) -> None:
    for _ in range(2):
        engine = engines.process()
        engine.does("start()")
        weight = "model._modules['1']._parameters['weight']"
        assert "CUDA error 1" in engine.run(f"writes({weight})")
        assert engine.run(f"{weight}.requires_grad") is False
        for owned in ("workspace", "_buffers['scale']"):
            engine.does(f"writes(model._modules['1'].{owned})")
        refused = engine.run("model.load_weights(7)")
        assert "NotSupportedError" in refused and '{"copy": true}' in refused
        taken_back = (
            "__import__('vllm.model_executor.model_loader.reload', fromlist='x').taken_back"
        )
        assert engine.run(f"{taken_back} == [model]")
        loader = "model_loader.get_model_loader(worker.vllm_config.load_config)"
        assert "shared and cannot be written" in engine.run(
            f"{loader}.get_all_weights(None, model)"
        )
        engine.kill()


@pytest.mark.parametrize("own_head", [0, 4], ids=["equal", "another"])
def test_a_head_of_the_checkpoints_own(engines: Engines, own_head: int) -> None:
    """vLLM 0.33.0 ties it to the embeddings if it is equal, and warns if it is not."""
    both = "[model._parameters[name].bytes()[0] for name in ('embedding', 'head')]"
    one = "len({model._parameters[name].data_ptr() for name in ('embedding', 'head')})"
    first = engines.process()
    first.does(f"start(own_head={own_head})")
    loaded = first.run(f"[{both}, {one}]")
    assert loaded[0] == [3, 3 + own_head]
    first.kill()
    for copy in (False, True):
        engine = engines.process()
        engine.does(f"start({{'copy': {copy}}}, own_head={own_head})")
        assert engine.run("model_loader.read") == []
        assert engine.run(f"[{both}, {one}]") == loaded
        assert engine.run("getattr(model_loader.utils, 'retied', [])") == []  # no stand-ins
        engine.kill()


@pytest.mark.parametrize("engines", ["0.33.0"], indirect=True)
def test_a_reset_spares_what_is_shared(engines: Engines) -> None:
    for _ in range(2):
        engine = engines.process()
        engine.does("start()")
        loaded = engine.run("contents()")
        refused = engine.run("worker.reset_weights()")
        assert "NotSupportedError" in refused and '{"copy": true}' in refused
        assert engine.run("contents()") == loaded
        engine.kill()
    engine = engines.process()
    engine.does("start({'copy': True})")
    engine.does("worker.reset_weights()")
    assert engine.run("model._parameters['embedding'].bytes()[0]") == 0


def test_copies_can_be_written(engines: Engines, house: House) -> None:
    for number in range(2):
        engine = engines.process()
        engine.does("start({'copy': True})")
        assert engine.run("model_loader.read") == ["folder/llama"] * (number == 0)
        engine.does("model.load_weights(7)")
        assert engine.run("model._parameters['embedding'].bytes()[0]") == 7
        assert engine.run("worker.requested_memory") == int(DEVICE_MEMORY * 0.9)
        engine.kill()
    sharing = engines.process()
    sharing.does("start()")
    assert sharing.run("[model_loader.read, model._parameters['embedding'].bytes()[0]]") == [[], 3]
    assert len(house.sets()) == 1


def test_a_sleep_unmaps_what_is_shared(engines: Engines) -> None:
    """Level 1 and 2 are the same for it: it is copied nowhere, and not lost."""
    for _ in range(2):
        engine = engines.process()
        engine.does("with tms.region('vllm.weights'): start()")
        loaded = engine.run("contents()")
        assert engine.run("tms.pause('vllm.weights', discard=True)") == 0
        assert "Error" in engine.run("model._parameters['embedding'].bytes()[0]")
        assert engine.run("model._modules['1']._buffers['scale'].bytes()[0]") == 6
        engine.run("tms.resume('vllm.weights')")
        assert engine.run("contents()") == loaded
        engine.kill()


def test_each_rank_decides_alone(engines: Engines, house: House) -> None:
    first = engines.process()
    first.does("start(world_size=2)")
    ranks = [engines.process() for _ in range(2)]
    for rank, engine in enumerate(ranks):
        engine.does(f"start(rank={rank}, world_size=2)")
    read = [engine.run("model_loader.read") for engine in ranks]
    assert read == [[], ["folder/llama"]]
    assert len({one["name"] for one in house.sets()}) == 2


def test_what_a_name_depends_on(engines: Engines, house: House, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    (weights / "model.safetensors").write_text("1")
    engine = engines.process()
    different = [
        "",
        "rank=1",
        "quantization='fp8'",
        "dtype='float16'",
        "revision='abc'",
        "extra={'num_threads': 3}",
        "extra={'name': 'mine'}",
        f"model={str(weights)!r}",
        "tensor_parallel_size=2",
    ]
    name = "Worker(made, 0, made.parallel_config.rank, '') and "
    name += "model_loader.get_model_loader(made.load_config)._name_of(made, made.model_config)"
    names = []
    for arguments in different:
        engine.does(f"made = config({arguments})")
        names.append(engine.run(name))
    (weights / "model.safetensors").write_text("other")
    engine.does(f"made = config(model={str(weights)!r})")
    names.append(engine.run(name))
    engine.does("os.environ['VLLM_USE_DEEP_GEMM'] = '0'; made = config()")
    names.append(engine.run(name))
    assert len(set(names)) == len(names), names
    assert names[0].startswith("llama@") and names[6].startswith("mine@")
    engine.does("made = config(extra={'name': 'mine'}, revision='def', dtype='float16')")
    assert engine.run(name) == names[6]


def test_what_cannot_be_published_is_served(engines: Engines, house: House) -> None:
    engine = engines.process()
    engine.does("start(strays=True)")
    assert engine.run("model._parameters['embedding'].bytes()[0]") == 3
    engine.does("model.load_weights(7)")
    assert house.sets() == []
    assert "that no module owns, such as in a kernel of a quantization: torch.float32 (4,)" in (
        engines.log()
    )
    assert "The next start reads the checkpoint again" in engines.log()
    refused = engine.run("start(strays=True, enable_sleep_mode=True, sleep_mode_backend='tms')")
    assert "Leave out --load-format tms" in refused


def test_a_model_that_does_not_fit(engines: Engines, house: House) -> None:
    engine = engines.process()
    engine.does("start({'name': 'mine'})")
    (name,) = (one["name"] for one in house.sets())
    other = engines.process()
    refused = other.run("start({'name': 'mine'}, wide=True)")
    assert f"`tms kept drop {name}`" in refused
    assert "could not be attached: the model does not fit the set: /_parameters/more" in refused
    house.command("kept", "drop", name)
    third = engines.process()
    third.does("start({'name': 'mine'}, wide=True)")
    assert third.run("model_loader.read") == ["folder/llama"]


def test_a_set_that_has_changed_is_published_anew(engines: Engines, house: House) -> None:
    engines.process().does("start()")
    house.overwrite(0, 0, 9)
    careful = engines.process(TMS_VERIFY="1")
    careful.does("start()")
    assert "its contents have changed" in engines.log()
    assert careful.run("model_loader.read") == ["folder/llama"]
    assert [one["users"] for one in house.sets() if not one["replaced"]] == [[careful.process.pid]]


def test_an_attach_that_leaves_more_than_the_load_did(engines: Engines) -> None:
    first = engines.process()
    first.does("start()")
    other = engines.process()
    other.does("import layers; prepare = layers.Method.process_weights_after_loading")
    other.does("def leaves(self, layer): prepare(self, layer); self.hidden = torch.filled(1, 4)")
    other.does("layers.Method.process_weights_after_loading = leaves")
    assert "no module owns torch.float32 (4,)" in other.run("start()")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("{'load_format': 'tms'}", "names the other loader"),
        ("{'copy': 'yes'}", "true or false"),
        ("{'nonsense': 1}", "Unexpected extra config keys"),
        ("{'load_format': 'fastsafetensors'}, world_size=2", "ranks read together"),
        ("enable_eplb=True", "enable_eplb, which writes weights"),
        ("enable_sleep_mode=True", "needs tms for sleep mode too"),
    ],
)
def test_refusals(engines: Engines, arguments: str, words: str) -> None:
    engine = engines.process()
    assert words in engine.run(f"start({arguments})")
    assert engine.run("model_loader.read") == []


def test_like_the_vllm_that_is_installed() -> None:
    """Names and signatures match vLLM's files."""
    real = sources("vllm")
    loaders = Path("model_executor", "model_loader")
    base = methods(real / loaders / "base_loader.py", "BaseModelLoader")
    ours = methods(PYMODULE / "tms" / "_vllm_loader.py", "Loader")
    for name in base.keys() & ours.keys():
        assert ours[name] == base[name], name
    default = methods(real / loaders / "default_loader.py", "DefaultModelLoader")
    assert ours["get_all_weights"] == default["get_all_weights"]
    for file, name in [
        (loaders / "utils.py", "initialize_model"),
        (loaders / "utils.py", "process_weights_after_loading"),
        (loaders / "__init__.py", "register_model_loader"),
        (loaders / "__init__.py", "get_model_loader"),
    ]:
        assert parameters(FAKE / "vllm" / file, name) <= parameters(real / file, name), name
    worker = (real / "v1" / "worker" / "gpu_worker.py").read_text()
    if "get_external_weight_memory" not in base:
        assert "request_memory(init_snapshot, self.cache_config)" in worker
    reload = (real / loaders / "reload" / "__init__.py").read_text()
    assert '"finalize_layerwise_reload"' in reload
    assert '"record_metadata_for_reloading"' in reload
    utils = (real / loaders / "utils.py").read_text()
    assert "in model.named_modules():" in utils, "the loop that stand-ins are for"
    if (real / loaders / "weight_tying.py").exists():
        assert "    maybe_retie_word_embeddings(model, model_config)\n" in utils
    if "def reset_weights" in worker:
        assert "        zero_weights(self.model_runner.get_model())\n" in worker
    torch_utils = (real / "utils" / "torch_utils.py").read_text()
    assert "def set_default_torch_dtype(" in torch_utils
