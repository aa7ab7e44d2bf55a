"""Where the build is, and how to start a process on the simulator."""

from __future__ import annotations

import os
from pathlib import Path

PYMODULE = Path(__file__).resolve().parent.parent
DROPIN = PYMODULE / "dropin"
BUILD = PYMODULE.parent / "build"
DEVICE_MEMORY = 256 << 20
HANGS = 600.0
"""Seconds after which a process counts as hung; on a busy machine one may take some minutes."""


def environment() -> dict[str, str]:
    """The environment in which a process runs under libtms.so on two simulated devices."""
    simulator, others = str(BUILD / "sim"), os.environ.get("LD_LIBRARY_PATH", "")
    if others.split(":")[0] != simulator:  # Python itself may need the others, as on clusters
        others = f"{simulator}:{others}" if others else simulator
    return {
        **os.environ,
        "LD_PRELOAD": str(BUILD / "lib" / "libtms.so"),
        "LD_LIBRARY_PATH": others,
        "PYTHONPATH": f"{PYMODULE}:{DROPIN}",
        "CUDASIM_DEVICES": "2",
        "CUDASIM_MEMORY": str(DEVICE_MEMORY),
        "TESTS_ON": "simulator",
    }
