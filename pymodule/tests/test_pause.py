"""Pausing and resuming: memory goes and comes, addresses stay, contents follow the settings."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import children
import cuda
import pytest
import tags
from cuda import MiB
from threads import in_threads

import tms
from tms import _library

SIZE = 24 * MiB + 5


@pytest.fixture
def contents() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def pointer(request: pytest.FixtureRequest, contents: bytes) -> Iterator[int]:
    """Memory of a region with the test's name and a host backup, which holds `contents`."""
    with tms.region(request.node.name, backup="host"):
        pointer = cuda.malloc(SIZE)
    cuda.write(pointer, contents)
    yield pointer
    tms.resume()
    cuda.free(pointer)


def test_with_backup(pointer: int, contents: bytes, request: pytest.FixtureRequest) -> None:
    tag = request.node.name
    before = cuda.free_memory()
    tms.pause(tag)
    assert cuda.free_memory() >= before + SIZE
    tms.resume(tag)
    assert cuda.free_memory() == before
    assert cuda.read(pointer, SIZE) == contents
    # new memory backs the address, not the copy
    cuda.write(pointer, b"changed")
    tms.pause(tag)
    tms.resume(tag)
    assert cuda.read(pointer, SIZE) == b"changed" + contents[7:]


def test_says_how_many_bytes(pointer: int, request: pytest.FixtureRequest) -> None:
    """Sizes of device memory, which segments take in multiples of 2 MiB."""
    tag, size = request.node.name, 26 * MiB
    before = cuda.free_memory()
    assert tms.pause(tag) == cuda.free_memory() - before == size
    assert tms.pause(tag) == 0
    assert tms.resume(tag, wait=1) == size
    assert cuda.free_memory() == before
    assert tms.resume(tag) == 0
    assert tms.pause("no such tag") == tms.resume("no such tag") == 0
    assert tms.pause() >= size
    others = cuda.malloc(cuda.free_memory() - 4 * MiB)
    with pytest.raises(tms.OutOfMemoryError):
        tms.resume(tag)
    begin = time.monotonic()
    with pytest.raises(tms.OutOfMemoryError):
        tms.resume(tag, wait=0.3)
    assert time.monotonic() - begin >= 0.3
    cuda.free(others)
    assert tms.resume() >= size
    for wait in (-1, float("nan")):
        with pytest.raises(ValueError, match="seconds"):
            tms.resume(tag, wait=wait)


def test_says_none_where_nothing_was_ever_paused() -> None:
    assert children.output("import tms; print(tms.pause(), tms.resume())") == "0 0\n"


def paused_bytes() -> dict[str, int]:
    paused = {entry["tag"]: entry["paused_bytes"] // MiB for entry in tags.entries()}
    return {tag: size for tag, size in paused.items() if size}


@pytest.mark.parametrize("fails", [False, True])
def test_paused_nests(fails: bool) -> None:
    """What was paused on entry is paused on exit, whatever the tags, and also after an error."""
    names = ["nested a", "nested b", "back\\x5cslash"]
    sizes = dict(zip(names, (8, 10, 12)))
    pointers = []
    for name, size in sizes.items():
        with tms.region(name, backup="host"):
            pointers.append(cuda.malloc(size * MiB))
        cuda.write(pointers[-1], name.encode())
    shown = {
        name.replace("\\", "\\\\") if "\\x" in name else name: size for name, size in sizes.items()
    }
    for outer in (*names, None):
        for inner in (*names, None):
            before = {}
            if outer is not None:
                tms.pause(names[1])  # by another caller, before
                before = paused_bytes()
            try:
                with tms.paused(outer):
                    held = paused_bytes()
                    try:
                        with tms.paused(inner), tms.paused(inner):
                            if inner is None:
                                assert paused_bytes() == shown
                            if fails:
                                raise KeyError(inner)
                    finally:
                        assert paused_bytes() == held
            except KeyError:
                assert fails
            assert paused_bytes() == before
            tms.resume()
    for name, pointer in zip(names, pointers):
        assert cuda.read(pointer, len(name)) == name.encode()
        cuda.free(pointer)


def test_paused_brings_back_what_the_body_has_paused() -> None:
    with tms.region("paused before"):
        before = cuda.malloc(8 * MiB)
    tms.pause("paused before")
    with tms.paused():
        with tms.region("made inside"):
            inside = cuda.malloc(8 * MiB)
        tms.pause()
        tms.pause("made inside")
    assert paused_bytes() == {"paused before": 8}
    with tms.paused("paused before"):
        tms.resume("paused before")
    assert paused_bytes() == {}
    cuda.free(before)
    cuda.free(inside)


def test_paused_brings_all_back_or_nothing() -> None:
    """Even where something was paused before, so that not all tags are resumed."""
    made = []
    for tag, size in (("old", 2), ("a", 60), ("b", 60)):
        with tms.region(tag, backup="host"):
            made.append(cuda.malloc(size * MiB))
    tms.pause("old")
    hog = 0
    with pytest.raises(tms.OutOfMemoryError), tms.paused():
        hog = cuda.malloc(cuda.free_memory() - 80 * MiB)  # room for one of the two
    paused = {entry["tag"]: entry["paused_bytes"] // MiB for entry in tags.entries()}
    assert paused["a"] == paused["b"] == 60
    cuda.free(hog)
    tms.resume()
    for pointer in made:
        cuda.free(pointer)


def test_paused_beside_a_tag_that_is_no_text() -> None:
    """As a program in C may have: its own name resumes it."""
    pointers = []
    for tag in (b"bad\xff\\", b"paused before"):
        with tms.region():
            _library.load().tag = tag
            pointers.append(cuda.malloc(8 * MiB))
    tms.pause("paused before")
    with tms.paused():
        assert paused_bytes() == {"paused before": 8, "bad\\xff\\\\": 8}
    assert paused_bytes() == {"paused before": 8}
    for pointer in pointers:
        cuda.free(pointer)


def test_paused_again_and_again_by_one_object() -> None:
    """Within itself, and one time after another."""
    with tms.region("recursive", backup="host"):
        pointer = cuda.malloc(8 * MiB)

    @tms.paused("recursive")
    def descend(depth: int) -> None:
        if depth:
            descend(depth - 1)
        assert paused_bytes() == {"recursive": 8}

    for _ in range(2):
        descend(3)
        assert paused_bytes() == {}
    cuda.free(pointer)


def test_threads_at_once() -> None:
    """Regions, allocations, pauses and resumes from several threads; every tag keeps its own."""

    def work(number: int) -> None:
        mine = bytes([number]) * MiB
        for _ in range(20):
            with tms.region(f"thread {number}", backup="host"):
                pointer = cuda.malloc(4 * MiB)
            cuda.write(pointer, mine)
            with tms.paused(f"thread {number}"):
                pass
            assert cuda.read(pointer, MiB) == mine
            cuda.free(pointer)

    in_threads(*(partial(work, number) for number in range(1, 5)))


@pytest.mark.parametrize("call", [tms.pause, tms.resume, tms.paused])
def test_arguments(call: object) -> None:
    with pytest.raises(ValueError, match="tag must not be empty"):
        call("")  # type: ignore[operator]
    with pytest.raises(TypeError, match="tag must be a str"):
        call(7)  # type: ignore[operator]


def test_keyboard_interrupt() -> None:
    """Ctrl-C during a long pause is raised when it returns; the state is whole either way."""
    out = children.output(
        """
        import os, signal, threading, time
        import cuda, tms
        signal.signal(signal.SIGINT, signal.default_int_handler)  # inherited, it may be ignored
        SIZE = 300 << 20
        with tms.region(backup="host"):
            pointer = cuda.malloc(SIZE)
        cuda.write(pointer, b"begin")
        cuda.write(pointer + SIZE - 3, b"end")
        before = cuda.free_memory()
        interrupted = 0
        for delay in (0.0, 0.05):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            try:
                timer.start()
                tms.pause()
                tms.resume()
                for _ in range(60000):  # one long sleep may begin just after the signal
                    time.sleep(0.01)
            except KeyboardInterrupt:
                interrupted += 1
            timer.join()
            tms.pause()
            assert cuda.free_memory() >= before + SIZE
            tms.resume()
            assert cuda.read(pointer, 5) == b"begin"
            assert cuda.read(pointer + SIZE - 3, 3) == b"end"
        print(interrupted)
        """,
        CUDASIM_MEMORY="512M",
    )
    assert out == "2\n"


MEMORY_IS_SHORT = """
        import os, signal, threading, time
        import cuda, tms
        with tms.region(backup="host"):
            pointer = cuda.malloc(100 << 20)
        cuda.write(pointer, b"kept")
        tms.pause()
        others = cuda.malloc(cuda.free_memory() - (50 << 20))
"""


WAITS = [
    "tms.resume(wait=600)",
    "tms.configure(resume_wait=float('inf')); tms.resume()",
    "from torch_memory_saver import torch_memory_saver; torch_memory_saver.resume()",
]


@pytest.mark.parametrize("call", WAITS)
def test_waiting_for_memory_can_be_interrupted(call: str) -> None:
    """Ctrl-C ends the wait at once; everything is still paused, and a later resume works."""
    out = children.output(
        MEMORY_IS_SHORT
        + f"""
        signal.signal(signal.SIGINT, signal.default_int_handler)  # inherited, it may be ignored
        at = []
        def interrupt():
            at.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)
        threading.Timer(0.7, interrupt).start()
        try:
            {call}
        except KeyboardInterrupt:
            print("late" if time.monotonic() - at[0] > 300 else "in time")
        print(tms.stats()["devices"][0]["tags"][0]["paused_bytes"] >> 20)
        cuda.free(others)
        print(tms.resume(wait=float("inf")) >> 20, cuda.read(pointer, 4))
        """,
        TMS_RESUME_WAIT="10m",
    )
    assert out == "in time\n100\n100 b'kept'\n"


ANOTHER_PROCESS_HAS_IT = """
import subprocess, sys, threading, time
import cuda, tms
with tms.region("weights", backup="host"):
    pointer = cuda.malloc(70 << 20)
cuda.write(pointer, b"kept")
tms.pause()
holder = subprocess.Popen(
    [sys.executable, "-c", "import cuda; a = cuda.malloc(200 << 20); print(flush=True); input()"],
    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
)
holder.stdout.readline()
def end():
    before = cuda.calls("cuMemGetInfo_v2")
    while cuda.calls("cuMemGetInfo_v2") < before + 8:  # it waits, and looks again and again
        time.sleep(0.001)  # a thread that only looks would keep the processor from the resume
    holder.communicate(b"\\n")
threading.Thread(target=end).start()
{call}
print(holder.pid, cuda.read(pointer, 4))
"""


@pytest.mark.parametrize("call", WAITS)
def test_waits_for_memory_of_another_process(call: str) -> None:
    """One line says which process holds how much."""
    done = children.python(
        "-c",
        ANOTHER_PROCESS_HAS_IT.format(call=call),
        TMS_RESUME_WAIT="10m",
        CUDASIM_SHARED=f"waits-{os.getpid()}",
    )
    assert done.returncode == 0, done.stderr
    pid, contents = done.stdout.split()
    assert contents == "b'kept'"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tms: ")]
    assert "waits for memory: device 0 (GPU-" in line
    assert " free and 70.00 MiB are needed; " in line
    assert pid in line
    assert "holds 200.00 MiB" in line


def test_a_wait_is_one_resume_in_the_report(tmp_path: pathlib.Path) -> None:
    """Python waits in parts, and a report draws them as one."""
    trace = tmp_path / "%p.trace"
    done = children.python(
        "-c",
        ANOTHER_PROCESS_HAS_IT.format(call="tms.resume()"),
        TMS_RESUME_WAIT="10m",
        TMS_TRACE=str(trace),
        CUDASIM_SHARED=f"one-wait-{os.getpid()}",
    )
    assert done.returncode == 0, done.stderr
    (recorded,) = (path for path in tmp_path.iterdir() if b"weights" in path.read_bytes())
    report = subprocess.run(
        [sys.executable, "-m", "tms", "report", recorded, "--format", "perfetto", "-o", "-"],
        capture_output=True,
        text=True,
        check=True,
    )
    events = json.loads(report.stdout)["traceEvents"]
    (resume,) = (event for event in events if event["ph"] == "X" and event["name"] == "resume")
    assert resume["args"]["code"] == 0
    assert resume["args"]["bytes"] == 70 << 20
    assert resume["args"]["waited"] > 0


def test_no_time_to_wait() -> None:
    for seconds in (-1, float("nan")):
        with pytest.raises(ValueError, match="resume_wait must be a number of seconds"):
            tms.configure(resume_wait=seconds)
    with pytest.raises(TypeError, match="resume_wait must be a number of seconds"):
        tms.configure(resume_wait="3")  # type: ignore[arg-type]
    tms.configure()
    done = children.python("-c", "import tms\nwith tms.region(): pass", TMS_RESUME_WAIT="1.5x")
    assert "TMS_RESUME_WAIT=1.5x is not understood; it takes a time such as 30" in done.stderr


def test_waiting_for_memory_runs_signal_handlers_and_goes_on() -> None:
    out = children.output(
        MEMORY_IS_SHORT
        + """
        handled = []
        def handle(number, frame):
            handled.append(time.monotonic())
            cuda.free(others)
        signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        print(tms.resume(wait=600) >> 20, time.monotonic() - handled[0] < 300)
        """
    )
    assert out == "100 True\n"
