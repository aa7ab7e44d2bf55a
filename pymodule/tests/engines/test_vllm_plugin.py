"""The plugin for vLLM, in workers made as vLLM makes them (fake/vllm), over the simulator."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import children
import pytest
from likeness import DROPIN, FAKE, lost, methods, sources
from plugin import installed
from simulator import PYMODULE

from tms import _vllm

PRELUDE = """
import sys, torch, tms, cuda, tags
from common import SIZE, free, full, holds
from expecting import raises
from vllm.v1.worker.gpu_worker import start
torch.cuda.synchronize()
initial = free()
"""


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a folder in which libtms looks installed, with its entry points."""
    folder: Path = tmp_path_factory.mktemp("installed")
    installed(folder)
    return folder


class Worker:
    """Runs code in a process in which vLLM's plugins are found."""

    def __init__(self, metadata: Path, preloaded: bool) -> None:
        paths = [DROPIN / "fake", DROPIN / "clients", FAKE, metadata]
        self._settings: dict[str, Any] = {"preloaded": preloaded, "paths": paths}

    def run(
        self, code: str, prelude: str = PRELUDE, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        code = prelude + textwrap.dedent(code)
        return children.run(code, **self._settings, **variables)

    def output(self, code: str, **variables: str) -> str:
        code = PRELUDE + textwrap.dedent(code)
        return children.output(code, quiet=True, **self._settings, **variables)

    def error(self, code: str, **variables: str) -> str:
        """The last line of the traceback with which it ends."""
        done = self.run(code, **variables)
        assert done.returncode == 1, done.stdout + done.stderr
        return done.stderr.splitlines()[-1]


@pytest.fixture(
    params=[True, pytest.param(False, marks=pytest.mark.thorough)],
    ids=["preloaded", "not preloaded"],
)
def worker(
    metadata: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Worker:
    for name in ("TMS_VLLM", "VLLM_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return Worker(metadata, request.param)


def test_levels(worker: Worker) -> None:
    """Level 1 keeps weights, and copies only what has changed; level 2 keeps nothing."""
    worker.output("""
    worker = start(sleep_mode_backend="tms")
    allocator = worker.backend._allocator
    def copies():
        return cuda.calls("cuMemcpyDtoHAsync_v2")
    def kept():
        return tags.total("backup_bytes")
    assert initial - free() == 3 * SIZE == allocator.get_current_usage()  # not what was temporary
    for cycle in range(3):
        before = copies()
        worker.sleep(level=1)
        assert free() == initial and worker.backend.state() == "SUSPENDED"
        assert (copies() > before) == (cycle == 0)
        worker.sleep(level=2)  # what sleeps stays as it is
        worker.wake_up()
        assert worker.backend.state() == "RUNNING" and initial - free() == 3 * SIZE
        assert holds(worker.weights, 3) and holds(worker.cache, 0) and kept() == SIZE
    worker.sleep(level=2)
    assert free() == initial and kept() == 0 and not copies() > before
    worker.wake_up()
    assert holds(worker.weights, 0)
    worker.weights.fill_(5)
    worker.sleep()
    worker.wake_up()
    assert holds(worker.weights, 5)
    """)


def test_forked_workers(worker: Worker) -> None:
    """As with tensor parallelism, the process that forks the workers loads the plugin."""
    code = """
    import multiprocessing
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    fork = multiprocessing.get_context("fork")
    together = fork.Barrier(2)

    def work(value):
        import torch
        from common import SIZE, free, holds
        from vllm.v1.worker.gpu_worker import start
        torch.cuda.synchronize()
        initial = free()
        worker = start()
        worker.weights.fill_(value)
        for level in (1, 1, 2):
            together.wait()
            worker.sleep(level)
            together.wait()
            assert free() == initial
            worker.wake_up(["weights"])
            assert initial - free() == SIZE
            worker.wake_up(["kv_cache"])
            assert holds(worker.weights, value if level == 1 else 0)

    workers = [fork.Process(target=work, args=(value,)) for value in (5, 6)]
    for process in workers:
        process.start()
    for process in workers:
        process.join()
        assert process.exitcode == 0
    """
    done = worker.run(code, prelude="", TMS_VLLM="1")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("order", [["weights", "kv_cache"], ["kv_cache", "weights"]])
def test_tags(worker: Worker, order: list[str]) -> None:
    worker.output(f"""
    sizes = dict(weights=SIZE, kv_cache=2 * SIZE)
    worker = start(sleep_mode_backend="tms")
    for level in (1, 2):
        worker.sleep(level)
        first, second = {order}
        worker.wake_up([first])
        assert initial - free() == sizes[first] and worker.backend.state() == "SUSPENDED"
        worker.wake_up([first])
        worker.wake_up([second])
        assert initial - free() == 3 * SIZE and worker.backend.state() == "RUNNING"
        assert holds(worker.weights, 3 if level == 1 else 0)
    worker.backend._allocator.discard(("kv_cache",))  # of newer versions
    assert initial - free() == SIZE
    worker.wake_up(["kv_cache"])
    assert initial - free() == 3 * SIZE
    worker.sleep(1)
    worker.wake_up([])
    assert free() == initial
    worker.wake_up()
    """)


def test_pools(worker: Worker) -> None:
    """Tags may nest and recur; tags other than vLLM's two always wake; the default tag is kept."""
    worker.output("""
    import threading
    worker = start(sleep_mode_backend="tms")
    allocator = worker.backend._allocator
    ordinary = full(8)
    with allocator.use_memory_pool(tag="runtime"):
        runtime = full(1)
        with allocator.use_memory_pool(tag="kv_cache"):
            more = full(2)
            with allocator.use_memory_pool(tag="runtime"):
                again = full(6)
        last = full(7)
        pointer = cuda.malloc(SIZE)  # as a library would, for itself: it stays
        others = []
        thread = threading.Thread(target=lambda: others.append(full(1)))
        thread.start()
        thread.join()
    with allocator.use_memory_pool():
        default = full(9)
    allocator.sleep(("weights", "runtime"))
    assert initial - free() == 3 * SIZE
    assert holds(ordinary, 8) and holds(others[0], 1)
    cuda.write(pointer, b"x")
    allocator.wake_up(["weights"])
    assert initial - free() == 3 * SIZE + 5 * SIZE
    assert holds(runtime, 1) and holds(again, 6) and holds(last, 7) and holds(default, 0)
    allocator.wake_up()
    default.fill_(9)
    allocator.sleep()
    allocator.wake_up()
    assert holds(default, 9) and holds(runtime, 0)
    cuda.free(pointer)
    """)


def test_expandable_segments_may_stay_on(worker: Worker) -> None:
    """They are off while memory that can sleep is made; other settings stay as they are."""
    settings = "max_split_size_mb:512,expandable_segments:True,roundup_power2_divisions:4"
    worker.output(
        f"""
    from torch.cuda import _memory
    worker = start(sleep_mode_backend="tms", load=False)
    from vllm.device_allocator import get_mem_allocator_instance
    allocator = get_mem_allocator_instance()
    with raises(ZeroDivisionError), allocator.use_memory_pool("weights"):
        assert _memory.settings == {settings.replace("True", "False")!r}
        _memory.set_settings("max_split_size_mb:20")  # as vLLM does in the body
        with allocator.use_memory_pool("kv_cache"):
            kept = full(3)
        assert _memory.settings == "max_split_size_mb:20"
        1 / 0
    assert _memory.settings == {settings!r}
    worker.initialize_from_config()
    worker.sleep()
    worker.wake_up()
    assert _memory.settings == {settings!r} and holds(kept, 0)
    """,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )


def test_nothing_changes_unless_it_is_chosen(worker: Worker) -> None:
    """With another backend, without sleep mode, and if the plugin is not to be loaded."""
    code = """
    import tms._vllm
    from vllm.device_allocator.cumem import CuMemAllocator
    from vllm.v1.worker.worker_base import WorkerBase
    tms._vllm.register()
    init = WorkerBase.__init__
    tms._vllm.register()
    assert WorkerBase.__init__ is init
    worker = start(**CONFIG)
    if worker.model_config.enable_sleep_mode:
        worker.sleep()
        worker.wake_up(["weights"])
        asked = ["use_memory_pool", "use_memory_pool", "sleep", "wake_up"]
        assert [name for name, _ in CuMemAllocator.instance.seen] == asked
    else:
        assert CuMemAllocator.instance is None
    from tms import _library, _torch
    assert _library._loaded is None and _torch._pools is None
    """
    worker.output(code.replace("CONFIG", "{}"))
    worker.output(code.replace("CONFIG", "{'sleep_mode': False}"), TMS_VLLM="1")
    worker.output(code.replace("CONFIG", "{}"), VLLM_PLUGINS="another", TMS_VLLM="0")


def test_chosen_by_the_environment(worker: Worker) -> None:
    """If vLLM has no argument for it. A value neither on nor off means off, with one warning."""
    code = """
    from vllm.device_allocator.cumem import CuMemAllocator
    worker = start()
    print(worker.model_config.sleep_mode_backend, type(worker.backend).__name__)
    """
    assert worker.output(code, TMS_VLLM="1") == "tms TmsBackend\n"
    assert worker.output(code, TMS_VLLM=" True ") == "tms TmsBackend\n"
    done = worker.run(code, TMS_VLLM="tms")
    assert done.stdout == "cumem CuMemBackend\n"
    assert "TMS_VLLM is 'tms', which is taken for 0: use 1 or 0" in done.stderr


def test_one_engine_after_another(worker: Worker) -> None:
    """In one process: the first one's memory is free again, whatever backend comes next."""
    worker.output("""
    from vllm.device_allocator.cumem import CuMemAllocator
    for _ in range(2):
        worker = start(sleep_mode_backend="tms")
        worker.sleep()
        worker.wake_up(["weights"])
        worker.shutdown()
        assert free() == initial
    worker = start()
    assert type(CuMemAllocator.instance) is CuMemAllocator
    CuMemAllocator.instance.usage = 1
    with raises(tms.NotSupportedError, "processes of their own"):
        start(sleep_mode_backend="tms")
    """)


def test_a_sleep_of_several_tags(worker: Worker) -> None:
    """As in newer versions: wherever it fails, all is awake with its contents, and reported so."""
    worker.output("""
    import vllm.device_allocator.sleep_mode_backend as backends

    def suspend(self, level=1):
        self._state = "SUSPENDED"
        backends.get_mem_allocator_instance().sleep(offload_tags=("weights", "runtime", "graphs"))

    backends.CuMemBackend.suspend = suspend
    worker = start(sleep_mode_backend="tms")
    allocator = worker.backend._allocator
    kept = []
    for value, tag in enumerate(("runtime", "graphs")):
        with allocator.use_memory_pool(tag):
            kept.append(full(value + 5))
    held, failures = initial - free(), 0
    for call, code in (("cuMemHostRegister_v2", 2), ("cuMemUnmap", 999)):
        nth, failed = 0, True
        while failed:
            nth += 1
            tms.trim()
            cuda.fail(call, nth, code)
            try:
                worker.sleep()
                failed = False
                assert free() == initial and worker.backend.state() == "SUSPENDED"
                cuda.forget_failures()
                worker.wake_up()
            except tms.TmsError:
                failures += 1
            assert initial - free() == held and worker.backend.state() == "RUNNING"
            assert holds(worker.weights, 3) and holds(kept[0], 5) and holds(kept[1], 6)
    assert failures >= 6

    # What slept before still sleeps. If others have taken the room by then, the error says so.
    worker.sleep()
    worker.wake_up(["kv_cache"])
    cuda.fail("cuMemUnmap", 3, 999)
    with raises(tms.TmsError):
        worker.sleep()
    assert worker.backend.state() == "SUSPENDED" and initial - free() == held - SIZE
    worker.wake_up()
    tms.pause("vllm.weights")
    assert worker.backend.state() == "SUSPENDED"
    tms.resume()
    assert worker.backend.state() == "RUNNING" and holds(worker.weights, 3)
    """)


def test_a_failed_sleep_loses_nothing(worker: Worker) -> None:
    """Neither what it was to discard nor what finds no room to return; what slept still sleeps."""
    worker.output("""
    from vllm.device_allocator import get_mem_allocator_instance
    worker = start(sleep_mode_backend="tms")
    allocator = get_mem_allocator_instance()

    def refused(action, *arguments):
        cuda.fail("cuMemUnmap", 2, 999)
        cuda.fail("cuMemCreate", 1, 999)
        with raises(tms.TmsError):
            action(*arguments)
        cuda.forget_failures()

    for level in (2, 1):
        refused(worker.sleep, level)
        assert worker.backend.state() == "RUNNING" and not allocator.asleep()
        assert holds(worker.weights, 3) and holds(worker.cache, 4)
    refused(allocator.discard, ("weights", "kv_cache"))
    assert worker.backend.state() == "RUNNING"
    assert holds(worker.weights, 3) and holds(worker.cache, 4)

    tms.pause("vllm.kv_cache")
    with allocator.use_memory_pool(tag="kv_cache"):
        more = full(7)
    held = initial - free()
    refused(worker.sleep, 2)
    assert worker.backend.state() == "SUSPENDED" and initial - free() == held
    assert holds(worker.weights, 3) and holds(more, 7)
    worker.sleep()
    assert free() == initial

    # A wake-up that finds no room for all wakes none.
    pointer = cuda.malloc(free() - 2 * SIZE)
    left = free()
    with raises(tms.OutOfMemoryError):
        worker.wake_up()
    assert free() == left and worker.backend.state() == "SUSPENDED"
    cuda.free(pointer)
    worker.wake_up()
    assert worker.backend.state() == "RUNNING" and holds(worker.weights, 3)
    """)


def test_host_memory_goes_back_at_a_wake_up(worker: Worker) -> None:
    """If vLLM's variable says so, and only what no sleeping tag needs; contents stay right."""
    code = """
    worker = start(sleep_mode_backend="tms")
    def kept():
        return tags.total("backup_bytes")
    for value in (3, 6):
        worker.sleep()
        worker.wake_up(["kv_cache"])
        assert kept() == SIZE
        worker.wake_up(["weights"])
        assert kept() == KEPT and holds(worker.weights, value)
        worker.weights.fill_(6)
    """
    worker.output(code.replace("KEPT", "SIZE"), VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY="0")
    worker.output(code.replace("KEPT", "0"), VLLM_SLEEP_MODE_RELEASE_HOST_MEMORY="1")


def test_tags_of_vllm_0_33(worker: Worker) -> None:
    """Runtime state is kept at each level, and back with any wake-up; a discard takes its tags."""
    code = """
    worker = start(sleep_mode_backend="tms")
    assert initial - free() == 4 * SIZE and holds(worker.state, 7)
    for level in (2, 1):
        worker.sleep(level)
        assert free() == initial and tags.total("backup_bytes") == SIZE * (1 + (level == 1))
        worker.wake_up(["weights"])
        assert initial - free() == 2 * SIZE and holds(worker.state, 7)
        assert holds(worker.weights, 3 if level == 1 else 0)
        worker.wake_up(["kv_cache"])
        worker.weights.fill_(3)
    worker.discard(("kv_cache", "unknown"))
    assert initial - free() == 2 * SIZE and worker.backend.state() == "SUSPENDED"
    worker.sleep()  # what is discarded already stays so
    worker.discard(("weights",))  # and what sleeps keeps its contents
    assert free() == initial
    worker.wake_up()
    assert worker.backend.state() == "RUNNING" and holds(worker.weights, 3)
    held = initial - free()
    worker.discard(("unknown",))
    assert initial - free() == held and worker.backend.state() == "RUNNING"
    """
    worker.output(code, FAKE_VLLM="0.33.0")


def test_loading_on_a_full_device(worker: Worker) -> None:
    """Weights that are replaced one by one, by larger ones, take no second copy's room.

    PyTorch gives free segments of the pool back when memory runs out (max_split_size_mb, which vLLM
    sets while it loads), and asks again. So after a failed allocation the next one must succeed.
    """
    worker.output(
        """
    worker = start(sleep_mode_backend="tms", load=False)
    from vllm.device_allocator import get_mem_allocator_instance
    allocator = get_mem_allocator_instance()
    layer, larger, room = 24 << 20, 26 << 20, free()
    with allocator.use_memory_pool("weights"):
        layers = [full(value, layer) for value in range(10)]
        beside = cuda.malloc(free() - 2 * layer)  # room for two layers
        for value in range(10):
            layers[value] = full(value, larger)
        assert all(holds(each, value) for value, each in enumerate(layers))
        with raises(RuntimeError, "out of memory"):
            full(1, 4 * layer)
    assert free() == 12 * layer - 10 * larger
    allocator.sleep(("weights",))
    cuda.free(beside)
    assert free() == room
    allocator.wake_up()
    assert all(holds(each, value) for value, each in enumerate(layers))
    """,
        PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:20",
        CUDASIM_MEMORY="1G",
    )


def test_refusals(worker: Worker) -> None:
    """Refusals have a clear text, and come only if tms was chosen."""
    chosen = "start(sleep_mode_backend='tms')"
    said = worker.error(chosen, FAKE_PLATFORM="cpu")
    assert "needs an NVIDIA GPU, and vLLM runs on 'cpu' here" in said
    worker.output("start(load=False)", FAKE_PLATFORM="cpu")
    for setting in ("sleep_mode_offload_cudagraph", "enable_nccl_comm_suspend"):
        said = worker.error(f"start({setting}=True)", TMS_VLLM="1")
        assert f"'tms' cannot be combined with {setting}: it " in said
        assert "or use vLLM's own backend (unset TMS_VLLM)" in said
        worker.output(f"start(sleep_mode=False, {setting}=True)", TMS_VLLM="1")
        worker.output(f"start({setting}=True)")
    registered = """
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory as factory
    factory.register_backend("tms", "tms._vllm_backend", "TmsBackend")
    start(sleep_mode_backend="tms").sleep()
    """
    said = worker.error(registered, VLLM_PLUGINS="another")
    assert "NotSupportedError" in said and "If VLLM_PLUGINS is set it must name tms" in said


def test_versions_without_backends(worker: Worker) -> None:
    code = "import vllm, tms._vllm; tms._vllm.register()"
    assert worker.run(code, prelude="", FAKE_OLD="1").returncode == 0
    said = worker.error(code, prelude="", FAKE_OLD="1", TMS_VLLM="1")
    assert "vLLM 0.26.0 has no sleep-mode backends" in said and "or unset TMS_VLLM" in said


SHARED = [
    ("v1/engine/core.py", "EngineCore"),
    ("v1/core/sched/scheduler.py", "Scheduler"),
]


def test_like_the_vllm_that_is_installed() -> None:
    """Names and signatures match vLLM's files."""
    real = sources("vllm")
    cumem, fake_cumem = (
        methods(root / "device_allocator" / "cumem.py", "CuMemAllocator")
        for root in (real, FAKE / "vllm")
    )
    ours = methods(PYMODULE / "tms" / "_vllm.py", "Allocator")
    left_out = {"get_instance", "cudagraph_pool"}  # the class's own; only of backend "cumem"
    public = {name for name in cumem if not name.startswith("_")} - left_out
    assert public <= set(ours), "CuMemAllocator can do more"
    for name in public:
        assert ours[name] == cumem[name], name
    for name in public & set(fake_cumem):
        assert fake_cumem[name] == cumem[name], name
    backends = real / "device_allocator" / "sleep_mode_backend.py"
    theirs = methods(backends, "SleepModeBackend")
    for name, found in methods(PYMODULE / "tms" / "_vllm_backend.py", "TmsBackend").items():
        assert found == theirs[name], name
    for file, name in [
        ("device_allocator/sleep_mode_backend.py", "SleepModeBackend"),
        ("device_allocator/sleep_mode_backend.py", "CuMemBackend"),
        ("device_allocator/sleep_mode_backend.py", "SleepModeBackendFactory"),
        ("v1/worker/worker_base.py", "WorkerBase"),
        *SHARED,
    ]:
        there = methods(real / file, name)
        for method, found in methods(FAKE / "vllm" / file, name).items():
            assert found == there[method], f"{name}.{method}"
    assert not lost("vllm", real)
    # The plugin also relies on this: the instance is an attribute of the class, and the worker's
    # base knows its configuration before.
    assert "instance" in (real / "device_allocator" / "cumem.py").read_text()
    worker = (real / "v1" / "worker" / "gpu_worker.py").read_text()
    assert "CuMemAllocator.instance.release_pools()" in worker
    assert re.search(r"class Worker\(WorkerBase\)", worker)
    assert "super().__init__(" in worker and "get_mem_allocator_instance()" in worker
    config = (real / "config" / "model.py").read_text()
    assert re.search(r"sleep_mode_backend: str", config)
    assert re.search(r"enable_sleep_mode: bool", config)
    assert f'"{_vllm.NAME}"' not in backends.read_text(), "vLLM has a backend of that name itself"
