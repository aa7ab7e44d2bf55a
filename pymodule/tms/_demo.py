"""tms demo: a training that pauses in the middle and lends its memory out (examples/train.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ._library import find
from ._subprocess import configure_subprocess

_SEES_A_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def run() -> int:
    """Runs on a GPU if PyTorch sees one, else on the simulator; returns 0 if all is true.

    Raises:
        LibraryNotFoundError: there is no libtms.so, or no simulator.
        TmsError: as for `tms.configure_subprocess`.
    """
    command, variables = [sys.executable, "-c", _SEES_A_GPU], {}
    device = "gpu"
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        device = "simulator"
        folders = [os.path.dirname(find("sim", "libcuda.so.1")), os.environ.get("LD_LIBRARY_PATH")]
        variables = {"CUDASIM_DEVICES": "1", "CUDASIM_MEMORY": str(256 << 20)}
        variables["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        print("demo: PyTorch sees no GPU: training in plain Python on the simulator", flush=True)
    else:
        print("demo: training with PyTorch on the GPU", flush=True)
    with configure_subprocess():
        return subprocess.run(
            [sys.executable, _examples() / "train.py", "--device", device],
            env={**os.environ, **variables},
            check=False,
        ).returncode


def _examples() -> Path:
    package = Path(__file__).resolve().parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"
