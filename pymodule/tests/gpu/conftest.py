"""What every test on the GPU starts from and leaves behind."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest

import tms

worker = os.environ.get("PYTEST_XDIST_WORKER")
if worker and os.environ.get("TESTS_ON") != "simulator":
    # scripts/gpu-test.sh starts as many as there are GPUs; CUDA reads this at its first call
    number, visible = int(worker.removeprefix("gw")), os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else [str(number)]
    os.environ["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Releases what PyTorch caches, and resumes what a test left paused."""
    yield
    gc.collect()
    tms.empty_cache()
    tms.resume()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Shows a failure at once: a run of all tests may meet a time limit before pytest's summary."""
    report = yield
    terminal = item.config.pluginmanager.get_plugin("terminalreporter")
    if report.failed and terminal:
        terminal.write_line(f"\n{item.nodeid}\n{report.longreprtext}")
    return report


@pytest.fixture
def tag(request: pytest.FixtureRequest) -> str:
    """A tag of the test's own, and so memory pools."""
    name: str = request.node.name
    return name
