"""Runs the tests under libtms.so over the simulator: starts pytest anew, preloaded.

A pytest that was started with libtms.so preloaded already is left as it is (the tests in gpu/
are run so, on a real device).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys

import pytest
from simulator import BUILD, environment


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if hasattr(ctypes.CDLL(None), "tms_pause"):
        return
    if re.search(r"[\s:]", str(BUILD)):
        pytest.exit(
            f"LD_PRELOAD takes no path with a space or a colon, such as {BUILD}: test a checkout "
            "elsewhere",
            returncode=2,
        )
    for needed in (BUILD / "lib" / "libtms.so", BUILD / "sim" / "libcuda.so.1"):
        if not needed.exists():
            pytest.exit(f"{needed} does not exist: run scripts/build.sh first", returncode=2)
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        capture.stop_global_capturing()
    command = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    os.chdir(config.invocation_params.dir)
    os.execve(sys.executable, command, environment())
