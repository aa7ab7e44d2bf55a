"""The names of torch_memory_saver 0.0.10, what they do, and what they refuse."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Callable

import pytest
from programs import PRELUDE, output, run
from simulator import PYMODULE

import tms
from tms._functions import SIGNATURES
from torch_memory_saver import TorchMemorySaver
from torch_memory_saver.utils import change_env, get_binary_path_from_package

InMode = Callable[..., None]


@pytest.fixture(params=["preload", "torch"])
def in_mode(request: pytest.FixtureRequest) -> InMode:
    """Runs code after PRELUDE with each hook_mode, preloaded if the mode needs it."""

    def in_mode(code: str, **variables: str) -> None:
        mode = f'saver.hook_mode = "{request.param}"\n'
        output(PRELUDE + mode + code, preloaded=request.param == "preload", **variables)

    return in_mode


def test_names() -> None:
    """All of the interface exists, in the modules that define it in the original."""
    output(
        """
        import torch_memory_saver as package
        from torch_memory_saver import TorchMemorySaver, configure_subprocess, torch_memory_saver
        from torch_memory_saver.binary_wrapper import BinaryWrapper
        from torch_memory_saver.entrypoint import _TorchMemorySaverImpl
        from torch_memory_saver.hooks.base import HookMode, HookUtilBase
        from torch_memory_saver.hooks.mode_preload import HookUtilModePreload
        from torch_memory_saver.hooks.mode_preload import configure_subprocess as for_preload
        from torch_memory_saver.hooks.mode_torch import HookUtilModeTorch
        from torch_memory_saver.testing_utils import empty_cache, get_and_print_gpu_memory
        from torch_memory_saver.testing_utils import get_device, is_xpu as the_same_too
        from torch_memory_saver.utils import change_env, get_binary_path_from_package, is_xpu

        assert callable(for_preload) and callable(configure_subprocess)
        assert the_same_too is is_xpu
        assert isinstance(torch_memory_saver, TorchMemorySaver)
        assert torch_memory_saver._impl is None
        torch_memory_saver._ensure_initialized()
        impl = torch_memory_saver._impl
        for name in ("_binary_wrapper", "_hook_mode", "_hook_util", "_mem_pools"):
            assert hasattr(impl, name), name
        assert impl._hook_util.get_allocator() is None
        assert not is_xpu()
        assert get_device() == "cuda"
        used = get_and_print_gpu_memory("now")
        empty_cache()
        assert get_and_print_gpu_memory("then", gpu_id=1) <= used
        """
    )


def test_import_needs_nothing() -> None:
    """Importing it neither imports PyTorch nor asks for the library."""
    code = "import sys, torch_memory_saver; print('torch' in sys.modules)"
    assert output(code, preloaded=False) == "False\n"


@pytest.mark.parametrize(
    "arguments",
    [
        {"enable_cpu_backup": True, "enable_disk_backup": True},
        {"cpu_backup_backend": "mmap", "enable_disk_backup": True},
        {"cpu_backup_backend": "pinned"},
        {"cpu_backup_backend": "tape", "enable_cpu_backup": True},
        {"tag": ""},
        {"tag": "a\0b"},
    ],
)
def test_argument_checks(arguments: dict[str, Any]) -> None:
    saver = TorchMemorySaver()
    with pytest.raises(ValueError), saver.region(**arguments):
        pass
    if "enable_disk_backup" not in arguments:
        with pytest.raises(ValueError), saver.cuda_graph(None, **arguments):
            pass


def test_margin() -> None:
    output(
        f"""
{PRELUDE}
for wrong in (-1, 1 << 64):
    with raises(ValueError):
        saver.memory_margin_bytes = wrong
saver.memory_margin_bytes = initial - 2 * SIZE
with saver.region():
    kept = full(1)
    with raises(torch.OutOfMemoryError):
        full(2, 2 * SIZE)
saver.memory_margin_bytes = 0
with saver.region():
    full(2, 2 * SIZE)
with raises(NotImplementedError):
    saver.memory_margin_bytes
"""
    )


def test_hook_mode() -> None:
    saver = TorchMemorySaver()
    assert saver.hook_mode == "preload"
    with pytest.raises(ValueError, match="one of preload, tms, torch.*, not 'inject'"):
        saver.hook_mode = "inject"
    saver.hook_mode = "torch"
    saver.hook_mode = "preload"
    saver.pause("nothing")
    saver.hook_mode = "preload"
    with pytest.raises(RuntimeError, match="before anything else"):
        saver.hook_mode = "torch"


def test_registered_hook_modes() -> None:
    """As with pull request 79 of the original: made at the first use, and called by keywords."""
    output(
        """
        import contextlib, os
        import torch_memory_saver as package
        from expecting import raises
        saver, made = package.torch_memory_saver, []

        class Other:
            def __init__(self):
                self.calls = []
                made.append(self)

            @contextlib.contextmanager
            def region(self, **named):
                self.calls.append(("region", named))
                yield

            cuda_graph = region

            def pause(self, **named):
                self.calls.append(("pause", named))

        package.register_hook_mode("other", Other, uses_preload=False)
        with raises(ValueError, "'other' is registered already"):
            package.register_hook_mode("other", Other)
        with raises(ValueError, "'tms' is registered already"):
            package.register_hook_mode("tms", Other)
        with package.configure_subprocess():
            assert "libtms" in os.environ["LD_PRELOAD"]
        saver.hook_mode = "other"
        with package.configure_subprocess():
            assert "LD_PRELOAD" not in os.environ
        assert saver.hook_mode == "other" and not made
        with saver.region("weights"), saver.region(enable_disk_backup=True):
            saver.pause("weights")
        with saver.cuda_graph("graph", pool="pool"):
            saver.pause()
        assert made[0].calls == [
            ("region", {"tag": "weights", "enable_cpu_backup": False}),
            (
                "region",
                {"tag": "default", "enable_cpu_backup": False, "enable_disk_backup": True},
            ),
            ("pause", {"tag": "weights"}),
            (
                "region",
                {
                    "cuda_graph": "graph",
                    "pool": "pool",
                    "stream": None,
                    "capture_error_mode": "global",
                    "tag": "default",
                    "enable_cpu_backup": False,
                },
            ),
            ("pause", {"tag": None}),
        ]
        with raises(TypeError):
            saver.region(colour="red")
        with raises(RuntimeError, "'other' and in use"):
            saver.hook_mode = "preload"
        assert len(made) == 1
        """,
        preloaded=False,
    )


def test_not_preloaded() -> None:
    """Where the original fails an assertion, an error says both ways out."""
    for use in ("saver.pause()", "saver._ensure_initialized()", "saver.region().__enter__()"):
        result = run(
            "-c",
            f"from torch_memory_saver import torch_memory_saver as saver; {use}",
            preloaded=False,
        )
        assert result.returncode == 1
        assert "NotPreloadedError" in result.stderr
        assert "LD_PRELOAD=" in result.stderr
        assert "hook_mode = 'torch'" in result.stderr


@pytest.mark.parametrize("variable", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments(variable: str) -> None:
    """With hook_mode "torch" the first use raises an error, with the text that clients look for."""
    use = """
        from torch_memory_saver import torch_memory_saver as saver
        saver.hook_mode = "{}"
        try:
            saver.memory_margin_bytes = 0
        except RuntimeError as error:
            print("expandable_segments is not supported" in str(error))
        """
    setting = {variable: "expandable_segments:True"}
    assert output(use.format("torch"), preloaded=False, **setting) == "True\n"
    assert output(use.format("torch"), preloaded=True, **setting) == ""
    assert output(use.format("preload"), preloaded=True, **setting) == ""


def test_set_config() -> None:
    """The inner wrapper sets the thread's settings at once, until they are set again."""
    output(
        f"""
{PRELUDE}
saver._ensure_initialized()
wrapper = saver._impl._binary_wrapper
{SETTINGS}
wrapper.set_config(tag="t", interesting_region=True, enable_cpu_backup=True,
                   cpu_backup_backend="mmap")
assert settings() == (True, b"t", True, False, b"mmap")
wrapper.set_config(tag="default", interesting_region=False, enable_cpu_backup=False,
                   enable_disk_backup=True)
assert settings() == (False, b"default", False, True, b"mmap")
wrapper.set_config(tag="u", interesting_region=False, enable_cpu_backup=True)
assert settings() == (False, b"u", True, False, b"mmap")
with raises(ValueError, "exclude each other"):
    wrapper.set_config(tag="v", interesting_region=True, enable_cpu_backup=True,
                       enable_disk_backup=True)
assert settings() == (False, b"u", True, False, b"mmap")
"""
    )


SETTINGS = """
cdll = saver._impl._binary_wrapper.cdll
def settings():
    return (cdll.tms_get_interesting_region(), cdll.tms_get_current_tag(),
            cdll.tms_get_enable_cpu_backup(), cdll.tms_get_enable_disk_backup(),
            cdll.tms_get_cpu_backup_backend())
"""


def test_regions_set_and_restore(in_mode: InMode) -> None:
    in_mode(f"""
saver._ensure_initialized()
{SETTINGS}
outside = (False, b"default", False, False, b"pinned")
assert settings() == outside
with saver.region("outer", enable_cpu_backup=True, cpu_backup_backend="mmap"):
    outer = (True, b"outer", True, False, b"mmap")
    assert settings() == outer
    with raises(KeyError), saver.region("inner", enable_disk_backup=True):
        assert settings() == (True, b"inner", False, True, b"mmap")
        with saver.disable():
            assert not cdll.tms_get_interesting_region()
            raise KeyError
    assert settings() == outer
    with saver._impl._with_region_config(tag="bare", enable_cpu_backup=False):
        assert settings() == (True, b"bare", False, False, b"mmap")
    assert settings() == outer
assert settings() == outside
""")


def test_regions_left_in_another_order(in_mode: InMode) -> None:
    in_mode(f"""
saver._ensure_initialized()
{SETTINGS}
outside = settings()
first = saver.region("first", enable_cpu_backup=True, cpu_backup_backend="mmap")
second = saver.region("second")
first.__enter__()
second.__enter__()
with raises(RuntimeError, "torch_memory_saver.region('first') is left before"):
    first.__exit__(None, None, None)
assert settings()[:3] == (True, b"second", False)
tensor = full(1)
second.__exit__(None, None, None)
assert settings() == outside
plain = full(2)
assert [tag["tag"] for tag in tms.stats()["devices"][0]["tags"]] == ["second"]
assert holds(tensor, 1)
saver.pause("second")
assert initial - free() == SIZE and holds(plain, 2)
""")


def test_memory_pools(in_mode: InMode) -> None:
    """Keyed by tag, backups, backend and device; dropped and replaced as clients do."""
    in_mode("""
with saver.region("a", enable_cpu_backup=True):
    first = full(1)
with saver.region("a", enable_cpu_backup=True, cpu_backup_backend="mmap"):
    second = full(2)
torch.cuda.set_device(1)
with saver.region("a"):
    third = full(3)
torch.cuda.set_device(0)
pools = saver._impl._mem_pools
assert set(pools) == {
    ("a", True, False, "pinned", 0), ("a", True, False, "mmap", 0), ("a", False, False, "", 1)
}, set(pools)
key = ("a", True, False, "pinned", 0)
assert key in pools and ("a", True) not in pools and len(pools) == 3
assert pools[key].use_count() == 1
assert pools.pop(("a", True), None) is None

# Another pool takes its place, and what is free in the old one is released.
allocator = saver._impl._hook_util.get_allocator()
mine = torch.cuda.MemPool(allocator)
with torch.cuda.use_mem_pool(mine), saver._impl._with_region_config("a", True):
    moved = full(1)
before = free()
pools[key] = mine
assert pools[key] is mine
del first
assert free() == before + SIZE
del moved
with saver.region("a", enable_cpu_backup=True):
    again = full(4)
assert free() == before + SIZE
saver.pause("a")
saver.resume("a")
assert holds(again, 4) and holds(second, 2)

# Dropped inside its region: it goes when the region is left.
with saver.region("a", enable_cpu_backup=True):
    del again, pools[key]
    assert key not in pools
    other = full(5)
del other
import tms
now = free()
# Beside `second`, whose extent it shares, it waits as slack.
assert now + tms.stats()["devices"][0]["slack_bytes"] == before + 2 * SIZE
pools.clear()
assert len(pools) == 0
""")


def test_region_object_again_and_again(in_mode: InMode) -> None:
    """Also as a decorator, and if made before the instance is initialized."""
    in_mode("""
region, disable = saver.region("t", enable_cpu_backup=True), saver.disable()
made = []
for number in (1, 2):
    with region:
        made.append((number, full(number)))
        with disable:
            plain = full(9)
@region
def make(number):
    made.append((number, full(number)))
make(3)
make(4)
saver.pause("t")
assert holds(plain, 9)
saver.resume("t")
assert len(made) == 4 and all(holds(tensor, number) for number, tensor in made)
""")


def test_same_region_again(in_mode: InMode) -> None:
    """A region within itself, and in two threads at the same time."""
    in_mode("""
import threading
saver.pause()
both, made = threading.Barrier(2), []
def work(number):
    with saver.region("t", enable_cpu_backup=True):
        both.wait()
        made.append((number, full(number)))
        with saver.region("t", enable_cpu_backup=True):
            made.append((number, full(number)))
        both.wait()
threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(made) == 4
saver.pause("t")
assert initial - free() <= SLACK
saver.resume("t")
assert all(holds(tensor, number) for number, tensor in made)
assert len(saver._impl._mem_pools) == 1
""")


def test_disable() -> None:
    """It makes ordinary memory, which goes back to the device; outside regions it does nothing."""
    output(
        f"""
{PRELUDE}
with saver.disable():
    ordinary = full(1)
with saver.region():
    pausable = full(2)
    with saver.disable():
        with saver.disable():
            also = full(3)
        assert holds(also, 3)
        del also
    inside = full(4)
saver.pause()
assert initial - free() == SIZE
assert holds(ordinary, 1)
"""
    )
    output(
        f"""
{PRELUDE}
default = full(1)
with saver.disable():
    temporary = full(2)
    assert initial - torch.cuda.mem_get_info()[0] == 2 * SIZE
    del temporary
assert initial - torch.cuda.mem_get_info()[0] == SIZE
saver.pause()
assert initial - free() == 0
""",
        TMS_INIT_ENABLE="1",
    )


def test_cpu_backup(in_mode: InMode) -> None:
    in_mode("""
with saver.region(enable_cpu_backup=True):
    kept = torch.zeros((4, SIZE // 4), dtype=torch.uint8, device="cuda")
with saver.region():
    lost = full(1)
ordinary = full(2)
kept.fill_(5)
assert saver.get_cpu_backup(kept) is None
saver.pause()
copy = saver.get_cpu_backup(kept)
view = saver.get_cpu_backup(kept, zero_copy=True)
assert holds(copy, 5) and holds(view, 5) and copy.shape == view.shape == (4, SIZE // 4)
assert saver.get_cpu_backup(lost) is None
assert saver.get_cpu_backup(ordinary) is None
for wrong in (copy, type("Strided", (), dict(is_cuda=True, is_contiguous=lambda self: False))()):
    with raises(ValueError):
        saver.get_cpu_backup(wrong)
del view
saver.resume()
assert saver.get_cpu_backup(kept, zero_copy=True) is None
assert holds(copy, 5)
""")


def test_retained_by_variable() -> None:
    code = "from torch_memory_saver import torch_memory_saver as s; print(s.retain_cpu_backup)"
    assert output(code, TMS_RETAIN_CPU_BACKUP="1") == "True\n"
    assert output(code) == "False\n"


def test_disk_backup(in_mode: InMode, tmp_path: Path) -> None:
    in_mode(f"""
import os
directory = {str(tmp_path / "new" / "er")!r}
saver.set_disk_backup_dir(directory)
assert os.path.isdir(directory)
with saver.region(enable_disk_backup=True):
    tensor = full(6)
saver.pause()
assert os.listdir(directory) == []
assert saver.get_cpu_backup(tensor) is None
saver.resume()
assert holds(tensor, 6)
""")


def test_resume_raises(in_mode: InMode) -> None:
    """Where the original exits, ours raises, and works once there is memory."""
    in_mode(
        """
with saver.region(enable_cpu_backup=True):
    tensor = full(1, 4 * SIZE)
saver.pause("")
others = [full(2, initial - 2 * SIZE)]
with raises(tms.OutOfMemoryError, "cudaError 2"):
    saver.resume()
assert holds(others[0], 2)
others.clear()
saver.resume("")
assert holds(tensor, 1)
""",
        CUDASIM_MEMORY="64M",
    )


def test_every_function_has_its_signature() -> None:
    header = (PYMODULE.parent / "preload" / "tms.h").read_text()
    declared = set(re.findall(r"(\w+)\([^)]*\);", re.sub(r"/\*.*?\*/", "", header, flags=re.S)))
    assert declared == set(SIGNATURES)


def test_other_functions_of_the_process(in_mode: InMode) -> None:
    in_mode("""
saver.pause()
cdll = saver._impl._binary_wrapper.cdll
assert cdll.cudaGetLastError() == 0
assert cdll.getpid() == __import__("os").getpid()
assert not hasattr(cdll, "tms_xpu_prewarm_devices")
assert not hasattr(cdll, "__wrapped__")
assert b"started" in __import__("json").dumps(tms.stats()).encode()
""")


def test_names_of_the_library() -> None:
    """A source checkout has only libtms.so; a wheel has all names (see test_wheel)."""
    for mode in ("preload", "torch"):
        for suffix in ("", "_cu12", "_cu13"):
            path = get_binary_path_from_package(f"torch_memory_saver_hook_mode_{mode}{suffix}")
            assert path == Path(tms.library_path())
    with pytest.raises(RuntimeError, match="no library is called"):
        get_binary_path_from_package("libc")


def test_change_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAME", raising=False)
    with change_env("NAME", "outer"):
        with pytest.raises(KeyError), change_env("NAME", "inner"):
            assert os.environ["NAME"] == "inner"
            raise KeyError
        assert os.environ["NAME"] == "outer"
    assert "NAME" not in os.environ


@pytest.mark.parametrize("entered", ['tms.region("t")', 'saver.region("t")'])
def test_tensors_that_never_come_to_the_library(entered: str) -> None:
    """PyTorch knows exactly what it took for regions, so other processes don't matter here."""
    out = output(
        f"""
import ctypes, warnings
{PRELUDE}
import cuda
handle = ctypes.CDLL("libcudart.so.13")
def past(size):
    pointer = ctypes.c_void_p()
    assert handle.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer.value
cuda.malloc = past
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with {entered}:
        past(SIZE)  # not PyTorch's
    assert not caught
    with {entered}:
        tensor = full(1)
    with {entered}:
        other = full(1)
for warning in caught:
    print(warning.category.__name__, warning.filename, warning.message)
"""
    )
    assert out.count("\n") == 1
    assert out.startswith("RuntimeWarning <string> ")
    assert "PyTorch holds 4 MiB for regions, but no allocation has come to libtms.so" in out
