"""The wheel as installed, in an environment that has PyTorch, without the repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from device import torch_on_gpu
from installed import checked, installed, python_of

torch = torch_on_gpu()

ROOT = Path(__file__).resolve().parents[3]
KINDS = ("libtms-*_x86_64.whl", "libtms_torch_memory_saver-*.whl")
WHEELS = [wheel for kind in KINDS for wheel in (ROOT / "build" / "wheel").glob(kind)]

if len(WHEELS) != len(KINDS):
    pytest.skip(
        f"one wheel of each kind is needed in build/wheel (scripts/wheel.sh); there are {WHEELS}",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site-packages of a new environment with the wheels, in front of those of this Python."""
    site = installed(tmp_path_factory.mktemp("environment"), *WHEELS)
    # --system-site-packages would not do: this Python may be a virtual environment's, too.
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parent.parent}\n")
    return site


@pytest.fixture(scope="module")
def python(site: Path) -> Path:
    return python_of(site)


def test_demo(python: Path) -> None:
    library = checked(python, "-m", "tms", "--path").strip()
    program = ROOT / "pymodule" / "examples" / "train.py"
    out = checked(python, program, "--device", "gpu", LD_PRELOAD=library)
    result = json.loads(out.splitlines()[-1])
    for fact in ("address_kept", "restored", "freed", "lent", "losses_equal"):
        assert result[fact] is True, result


@pytest.mark.parametrize("mode", ["preload", "torch"])
def test_program_for_torch_memory_saver(mode: str, python: Path, site: Path) -> None:
    """With hook_mode "preload" the library has the name that programs preload."""
    dropin = site / "tms" / "dropin"
    preload = {"LD_PRELOAD": str(dropin / "torch_memory_saver_hook_mode_preload_cu13.abi3.so")}
    out = checked(
        python,
        "-c",
        f"""
import torch, torch_memory_saver as package
from torch_memory_saver import torch_memory_saver

torch_memory_saver.hook_mode = {mode!r}
SIZE = 1 << 30
with torch_memory_saver.region("weights", enable_cpu_backup=True):
    weights = torch.randint(255, (SIZE,), dtype=torch.uint8, device="cuda")
with torch_memory_saver.region("cache"):
    cache = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")
copy, addresses = weights.cpu(), (weights.data_ptr(), cache.data_ptr())
before = torch.cuda.mem_get_info()[0]
torch_memory_saver.pause()
assert torch.cuda.mem_get_info()[0] >= before + 2 * SIZE - (64 << 20)
torch_memory_saver.resume("weights")
assert torch.equal(weights.cpu(), copy)
torch_memory_saver.resume("cache")
cache.fill_(3)
assert (cache == 3).all() and torch.equal(weights.cpu(), copy)
assert addresses == (weights.data_ptr(), cache.data_ptr())
print(package.__file__)
""",
        **(preload if mode == "preload" else {}),
    )
    assert out == f"{dropin / 'torch_memory_saver' / '__init__.py'}\n"
