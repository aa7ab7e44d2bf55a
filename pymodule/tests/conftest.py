"""Runs the tests under libtms.so over the simulator, by starting pytest again with a preload.

A pytest that was already started with libtms.so preloaded is left as it is: the tests in gpu/ are
run so, on a real device.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest
from simulator import BUILD, environment

OWN = "TESTS_OWN_FOLDERS"
"""The variable with the process that owns the folders, and their names, separated by colons."""


OPEN = "TESTS_OPEN"
"""The variable with the descriptor that tells leftovers.sh of the end of this process."""

watchers: list[subprocess.Popen[bytes]] = []


def apart() -> None:
    """Keeps the tests and the rest of the machine apart; see internal/aid/hermetic."""
    meeting = tempfile.mkdtemp(prefix="tms-test-", dir="/tmp")  # short, for paths of sockets
    others = os.environ.get(OWN, "").split(":")[2:]  # a process of pytest-xdist inherits TMPDIR
    beside = os.path.dirname(others[0]) if others else tempfile.gettempdir()  # not inside,
    if len(beside) > 50:  # for sockets' paths
        beside = "/tmp"
    files = tempfile.mkdtemp(prefix="tms-test-", dir=beside)
    read, write = os.pipe()
    leftovers = BUILD.parent / "internal" / "aid" / "hermetic" / "leftovers.sh"
    watchers.append(
        subprocess.Popen(
            ["sh", leftovers, f"TESTS_OF={meeting}", meeting, files],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.environ["PATH"]},
            cwd="/",
            start_new_session=True,
        )
    )
    os.close(read)
    os.environ.update({"TESTS_OF": meeting, OPEN: str(write)})
    os.environ[OWN] = f"{os.getpid()}:{meeting}:{files}"
    os.environ.update({"XDG_RUNTIME_DIR": meeting, "TMPDIR": files})
    os.environ.pop("TMS_NO_INSTALL", None)  # is the scripts', and the library would warn of it
    tempfile.tempdir = None
    os.umask(0o022)  # the usual one, as tests make files that others may read
    signal.signal(signal.SIGINT, signal.default_int_handler)


def own() -> list[str]:
    """The folders, if they have been made."""
    process, *folders = os.environ.get(OWN, "").split(":")
    return folders if process == str(os.getpid()) else []


def pytest_unconfigure() -> None:
    for folder in own():
        shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TESTS_QUICK") == "1":
        skip = pytest.mark.skip(reason="scripts/check.sh runs it")
        for item in items:
            if item.get_closest_marker("thorough"):
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if not own():
        apart()
    if hasattr(ctypes.CDLL(None), "tms_pause"):
        os.set_inheritable(int(os.environ[OPEN]), False)
        os.register_at_fork(after_in_child=lambda: os.close(int(os.environ[OPEN])))
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
    os.set_inheritable(int(os.environ[OPEN]), True)
    os.execve(sys.executable, command, environment())
