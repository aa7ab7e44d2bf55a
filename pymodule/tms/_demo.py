"""tms demo: a training that pauses in the middle and lends its memory out (examples/train.py)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ._errors import TmsError
from ._library import find, library_path

_SEES_A_GPU = "import sys, torch; sys.exit(not torch.cuda.is_available())"


def run() -> int:
    """Runs on a GPU if PyTorch sees one, else on the simulator; returns 0 if all is true.

    Raises:
        LibraryNotFoundError: there is no libtms.so, or no simulator.
        TmsError: its path has a colon in it, which the dynamic loader's variables can't express.
    """
    library = library_path()
    command = [sys.executable, "-c", _SEES_A_GPU]
    device, folders, variables = "gpu", [], {}
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        device, folders = "simulator", [os.path.dirname(find("sim", "libcuda.so.1"))]
        variables = {"CUDASIM_DEVICES": "1", "CUDASIM_MEMORY": str(256 << 20)}
        print("demo: PyTorch sees no GPU: training in plain Python on the simulator", flush=True)
    else:
        print("demo: training with PyTorch on the GPU", flush=True)
    if re.search(r"\s", library):  # LD_PRELOAD would split it; the folders' variable does not
        folders.append(os.path.dirname(library))
        library = os.path.basename(library)
    if ":" in "".join([library, *folders]):
        raise TmsError(f"LD_PRELOAD takes no path with a colon, such as {library_path()}: move it.")
    for name, paths in (("LD_PRELOAD", [library]), ("LD_LIBRARY_PATH", folders)):
        inherited = os.environ.get(name)
        variables[name] = ":".join([*paths, *([inherited] if inherited else [])])
    return subprocess.run(
        [sys.executable, _examples() / "train.py", "--device", device],
        env={**os.environ, **variables},
        check=False,
    ).returncode


def _examples() -> Path:
    package = Path(__file__).resolve().parent
    installed = package / "examples"
    return installed if installed.is_dir() else package.parent / "examples"
