"""The plugin for sglang, in processes made as sglang makes them (fake/sglang), over the simulator.

savers/ has stand-ins for the package torch_memory_saver itself: as it was released, and with its
pull request 79.
"""

from __future__ import annotations

import ast
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import children
import pytest
from likeness import DROPIN, FAKE, lost, methods, sources
from plugin import installed
from simulator import PYMODULE

SAVERS = FAKE.parent / "savers"


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("installed")
    installed(folder)
    return folder


class Sglang:
    """Runs code in a process in which sglang's plugins, and a torch_memory_saver, are found."""

    def __init__(self, metadata: Path) -> None:
        self._paths = [FAKE, DROPIN / "fake", DROPIN / "clients", metadata]

    def run(
        self, code: str, saver: str = "released", preloaded: bool = False, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """`saver`: a folder of savers/, or "ours": the drop-in."""
        first = "" if saver == "ours" else f"sys.path.insert(0, {str(SAVERS / saver)!r})"
        code = f"import sys\n{first}\n{textwrap.dedent(code)}"
        return children.run(code, preloaded=preloaded, paths=self._paths, **variables)

    def output(self, code: str, **keywords: Any) -> str:
        done = self.run(code, **keywords)
        assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
        return done.stdout

    def launch(self, arguments: str = "", **keywords: Any) -> str:
        """An engine's memory goes and comes; the class of its adapter and that one's base."""
        code = f"from sglang.srt.managers.scheduler import launch\nlaunch({arguments})"
        return self.output(code, **keywords).strip().removeprefix("served by ")


@pytest.fixture
def sglang(metadata: Path, monkeypatch: pytest.MonkeyPatch) -> Sglang:
    for name in ("TMS_SGLANG", "SGLANG_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    return Sglang(metadata)


EXPANDABLE = "max_split_size_mb:512,expandable_segments:True"
SETTINGS = ["", pytest.param(EXPANDABLE, marks=pytest.mark.thorough)]


@pytest.mark.parametrize("saver", ["released", "registering", "ours"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_chosen_by_the_environment(sglang: Sglang, saver: str, settings: str) -> None:
    """Whatever torch_memory_saver is installed; the scheduler is preloaded, and graphs pause."""
    served = sglang.launch(saver=saver, TMS_SGLANG="1", PYTORCH_CUDA_ALLOC_CONF=settings)
    assert served == "['TmsAdapter', 'Saver']"


def test_chosen_beside_other_plugins(sglang: Sglang) -> None:
    served = sglang.launch(TMS_SGLANG="1", SGLANG_PLUGINS="tms,another")
    assert served == "['TmsAdapter', 'Saver']"


@pytest.mark.parametrize("preloaded", [True, False])
@pytest.mark.parametrize("settings", SETTINGS)
def test_chosen_as_a_hook_mode(sglang: Sglang, preloaded: bool, settings: str) -> None:
    """torch_memory_saver preloads nothing for it: graphs then stay, and all else goes."""
    served = sglang.launch(
        f"hook_mode='tms', graphs={preloaded}",
        saver="registering",
        preloaded=preloaded,
        PYTORCH_CUDA_ALLOC_CONF=settings,
    )
    assert served == "['_TorchMemorySaverAdapterReal', 'TorchMemorySaverAdapter']"


def test_a_hook_mode_of_the_dropin(sglang: Sglang) -> None:
    """Its own mode has that name too, and is preloaded."""
    served = sglang.launch("hook_mode='tms'", saver="ours")
    assert served == "['_TorchMemorySaverAdapterReal', 'TorchMemorySaverAdapter']"


def test_graphs_need_the_preload(sglang: Sglang) -> None:
    code = "from sglang.srt.managers.scheduler import launch; launch('tms')"
    done = sglang.run(code, saver="registering")
    assert done.returncode == 1
    assert "pausable only in a process with libtms.so preloaded" in done.stderr


def test_nothing_changes_unless_it_is_chosen(sglang: Sglang) -> None:
    """Without the variable, and if SGLANG_PLUGINS leaves the plugin out."""
    code = """
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry
    load_plugins()
    assert not HookRegistry._hooks
    from sglang.srt.utils.torch_memory_saver_adapter import TorchMemorySaverAdapter
    assert type(TorchMemorySaverAdapter.create(True)).__name__ == "_TorchMemorySaverAdapterReal"
    library = sys.modules.get("tms._library")
    assert library is None or library._loaded is None
    """
    for saver in ("released", "registering", "ours"):
        sglang.output(code, saver=saver)
        sglang.output(code, saver=saver, TMS_SGLANG="1", SGLANG_PLUGINS="another")
    done = sglang.run(code, TMS_SGLANG="yes please")
    assert done.returncode == 0
    assert "TMS_SGLANG is 'yes please', which is taken for 0: use 1 or 0" in done.stderr


SAVER = """
import cuda, torch, tms, tms._sglang
from common import full, free, holds
from expecting import raises
saver = tms._sglang.Saver()
torch.cuda.synchronize()
initial = free()
"""


@pytest.mark.parametrize("preloaded", [True, False])
def test_what_a_saver_takes(sglang: Sglang, preloaded: bool, tmp_path: Path) -> None:
    """All backups of torch_memory_saver 0.0.10, or an error; a failure changes nothing."""
    code = """
    with saver.region("disk", enable_disk_backup=True, cpu_backup_backend="pinned"):
        kept = full(5)
    with saver.region(enable_cpu_backup=True):
        other = full(6)
    tms.set_disk_backup_dir(sys.argv[1])
    held = initial - free()
    cuda.fail("cuMemUnmap", 2, 999)
    with raises(tms.TmsError):
        saver.pause()
    cuda.forget_failures()
    assert initial - free() == held
    saver.pause("")
    assert free() == initial
    saver.resume(None)
    assert holds(kept, 5) and holds(other, 6)
    with raises(ValueError, "exclude each other"), saver.region("t", True, True):
        pass
    with raises(tms.NotSupportedError, "set TMS_INIT_CPU_BACKUP_BACKEND=mmap instead"):
        with saver.region("t", True, cpu_backup_backend="mmap"):
            pass
    """
    code = SAVER + textwrap.dedent(code).replace("sys.argv[1]", repr(str(tmp_path)))
    sglang.output(code, preloaded=preloaded)


def test_beside_the_library_of_torch_memory_saver(sglang: Sglang, tmp_path: Path) -> None:
    """That is preloaded where sglang starts the process itself, without asking the plugin."""
    source, library = tmp_path / "other.c", tmp_path / "torch_memory_saver.abi3.so"
    source.write_text("int tms_pause(const char *tag) { return 0; }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    done = sglang.run(SAVER + "with saver.region():\n    pass\n", LD_PRELOAD=str(library))
    assert done.returncode == 1
    assert "or another library. Preload " in done.stderr


def test_like_the_sglang_that_is_installed() -> None:
    """Names and signatures match sglang's files."""
    root = sources("sglang")
    adapter = "srt/utils/torch_memory_saver_adapter.py"
    for file, name in [
        (adapter, "TorchMemorySaverAdapter"),
        (adapter, "_TorchMemorySaverAdapterReal"),
        ("srt/plugins/hook_registry.py", "HookRegistry"),
    ]:
        there = methods(root / file, name)
        for method, found in methods(FAKE / "sglang" / file, name).items():
            assert found == there[method], f"{name}.{method}"
    scheduler = "srt/managers/scheduler.py"
    theirs = methods(root / scheduler, "Scheduler")
    for name in ("on_idle", "process_input_requests", "is_fully_idle", "flush_cache"):
        found = methods(FAKE / "sglang" / scheduler, "Scheduler")[name]
        assert found == theirs[name][: len(found)], name
        assert all(default for _, default in theirs[name][len(found) :]), name
    assert not lost("sglang", root)
    ours = methods(PYMODULE / "tms" / "_sglang.py", "Saver")
    public = set(methods(root / adapter, "TorchMemorySaverAdapter")) - {"create", "check_validity"}
    assert public <= {*ours, "enabled"}, "sglang's adapter can do more"
    plugins = (root / "srt" / "plugins" / "__init__.py").read_text()
    assert 'GENERAL_PLUGINS_GROUP = "sglang.srt.plugins"' in plugins
    for file, caller in [
        ("srt/managers/scheduler.py", "run_scheduler_process"),
        ("srt/entrypoints/engine.py", "Engine"),
    ]:
        (function,) = (
            node
            for node in ast.parse((root / file).read_text()).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == caller
        )
        assert "load_plugins()" in ast.unparse(function), file
