"""Errors are typed, with cause and advice, and nothing is lost by them."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import children
import cuda
import pytest
from cuda import MiB

import tms
from tms._errors import from_code
from tms._library import Library

SIZE = 64 * MiB


@pytest.fixture
def contents() -> bytes:
    return os.urandom(SIZE)


@pytest.fixture
def pointer(contents: bytes) -> Iterator[int]:
    with tms.region("errors", backup="host"):
        pointer = cuda.malloc(SIZE)
    cuda.write(pointer, contents)
    yield pointer
    tms.resume("errors")
    cuda.free(pointer)


def paused_bytes() -> int:
    """Of tag 'errors', from the library's own numbers."""
    tags = [tag for device in tms.stats()["devices"] for tag in device["tags"]]
    return sum(tag["paused_bytes"] for tag in tags if tag["tag"] == "errors")


def test_resume_out_of_memory(pointer: int, contents: bytes) -> None:
    tms.pause("errors")
    other = cuda.malloc(cuda.free_memory() - 4 * MiB)
    with pytest.raises(tms.OutOfMemoryError) as caught:
        tms.resume("errors")
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, tms.TmsError)
    assert caught.value.code == 2
    assert caught.value.cause
    assert "are needed (cudaError 2)" in str(caught.value)
    assert "cuMem" not in str(caught.value)
    assert "'errors'" in str(caught.value)
    assert "free device memory" in str(caught.value)
    assert paused_bytes() == SIZE
    cuda.write(other, b"untouched")
    cuda.free(other)
    tms.resume("errors")
    assert paused_bytes() == 0
    assert cuda.read(pointer, SIZE) == contents


def test_paused_out_of_memory(pointer: int, contents: bytes) -> None:
    others = []
    with pytest.raises(tms.OutOfMemoryError), tms.paused("errors"):
        others.append(cuda.malloc(cuda.free_memory() - 4 * MiB))
    cuda.free(others[0])
    tms.resume("errors")
    assert cuda.read(pointer, SIZE) == contents


def test_region_out_of_memory(pointer: int, contents: bytes) -> None:
    before = cuda.free_memory()
    with tms.region("errors", backup="host"), pytest.raises(cuda.CudaError, match="^2$"):
        cuda.malloc(cuda.free_memory() + 4 * MiB)
    assert cuda.free_memory() == before
    assert cuda.read(pointer, SIZE) == contents


def test_last_error(pointer: int) -> None:
    """For a failure without an exception, as of cudaMalloc, in the thread where it failed."""
    size = cuda.free_memory() + 4 * MiB
    with tms.region("errors"), pytest.raises(cuda.CudaError, match="^2$"):
        cuda.malloc(size)
    assert "memory" in tms.last_error()
    elsewhere: list[str] = []
    thread = threading.Thread(target=lambda: elsewhere.append(tms.last_error()))
    thread.start()
    thread.join()
    assert elsewhere == [""]


DRIVER = [
    "cuCtxSynchronize",
    "cuMemAddressReserve",
    "cuMemCreate",
    "cuMemHostAlloc",
    "cuMemHostRegister_v2",
    "cuMemMap",
    "cuMemRelease",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuEventRecord",
    "cuEventSynchronize",
]


def counts() -> dict[str, int]:
    return {function: cuda.calls(function) for function in DRIVER}


@pytest.fixture
def three(contents: bytes) -> Iterator[list[int]]:
    """Makes three segments of 8 MiB with a backup, each with the beginning of `contents`."""
    pointers = []
    with tms.region("errors", backup="host"):
        for _ in range(3):
            pointers.append(cuda.malloc(8 * MiB))
            cuda.write(pointers[-1], contents[: 8 * MiB])
    tms.pause("errors")
    tms.resume("errors")  # from here on they share an extent, so every cycle makes the same calls
    yield pointers
    cuda.forget_failures()
    tms.resume("errors")
    for pointer in pointers:
        cuda.free(pointer)


@pytest.mark.parametrize("code", [2, 304, 999])
@pytest.mark.parametrize("action", [tms.pause, tms.resume])
def test_driver_fails_midway(
    action: Callable[[str], None], code: int, three: list[int], contents: bytes
) -> None:
    """Every driver call of a pause or resume fails in turn; nothing is lost, and a retry works."""

    def prepare() -> int:
        tms.resume("errors")
        if action is tms.resume:
            tms.pause("errors")
        return cuda.free_memory()

    free_before = prepare()
    before = counts()
    action("errors")
    made = {function: times - before[function] for function, times in counts().items()}
    free_after = cuda.free_memory()
    assert abs(free_after - free_before) == 24 * MiB
    assert made["cuMemUnmap" if action is tms.pause else "cuMemMap"] > 0

    raised = 0
    for function, times in made.items():
        for nth in range(1, times + 1):
            assert prepare() == free_before, (function, nth)
            fired = cuda.failures()
            cuda.fail(function, nth, code)
            try:
                action("errors")
            except tms.TmsError as error:
                raised += 1
                assert error.code in (code, 304), function
                # for a shortage the cause is the library's text about the device
                assert function in error.cause or error.code == 2, function
                assert function not in str(error), function
            assert cuda.failures() == fired + 1, (function, nth)
            # a handle whose release the driver refuses counts as held, until the next pause
            assert paused_bytes() in (0, 24 * MiB) or function == "cuMemRelease", nth
            if paused_bytes() == 0 and function != "cuMemRelease":
                for pointer in three:
                    assert cuda.read(pointer, 8 * MiB) == contents[: 8 * MiB], (function, nth)
            action("errors")
            assert cuda.free_memory() == free_after, (function, nth)
            tms.resume("errors")
            for pointer in three:
                assert cuda.read(pointer, 8 * MiB) == contents[: 8 * MiB], (function, nth)
    assert raised > 0


def test_several_tags_are_paused_and_resumed_as_one(contents: bytes) -> None:
    """Wherever it fails, all tags are as they were, also those that the pause was to discard."""
    tags, pointers = ["one", "two"], []
    for tag in tags:
        with tms.region(tag, backup="host"):
            pointers.append(cuda.malloc(8 * MiB))
        cuda.write(pointers[-1], contents[: 8 * MiB])

    def paused() -> list[bool]:
        found = {
            tag["tag"]: tag["paused_bytes"] > 0 for d in tms.stats()["devices"] for tag in d["tags"]
        }
        return [found[tag] for tag in tags]

    def whole() -> bool:
        return all(cuda.read(pointer, 8 * MiB) == contents[: 8 * MiB] for pointer in pointers)

    for discard in (False, ["one"], ("two",), "two", True):
        for nth in (1, 2):
            cuda.fail("cuMemUnmap", nth, 999)
            with pytest.raises(tms.TmsError, match="^pausing tag 'one', 'two' failed"):
                tms.pause(tags, discard=discard)
            assert paused() == [False, False] and whole(), (discard, nth)
    assert tms.pause([]) == tms.resume([]) == 0 and paused() == [False, False]
    with pytest.raises(ValueError, match="discard has tags that tag does not name: three"):
        tms.pause(tags, discard=["two", "three"])
    with pytest.raises(ValueError, match="discard has tags that tag does not name: one"):
        tms.pause(discard="one")  # without tags it is unclear which others are meant
    with pytest.raises(TypeError, match="tag must be a str such as 'weights', not int"):
        tms.pause(["one", 2])  # type: ignore[list-item]
    assert tms.pause(tags) == 16 * MiB
    for nth in (1, 2):
        cuda.fail("cuMemMap", nth, 999)
        with pytest.raises(tms.TmsError, match="^resuming tag 'two', 'one' failed"):
            tms.resume(("two", "one"))
        assert paused() == [True, True]
    assert tms.resume(tags) == 16 * MiB and whole()
    tms.pause(tags, discard=["two"])
    tms.resume(tags)
    assert cuda.read(pointers[0], 8 * MiB) == contents[: 8 * MiB]
    assert cuda.read(pointers[1], 8 * MiB) != contents[: 8 * MiB]
    for pointer in pointers:
        cuda.free(pointer)


def test_lost_contents(tmp_path: Path) -> None:
    """A file is deleted while paused: the loss is reported every time, and there is a way on."""
    with tms.region("errors", backup="disk"):
        lost = cuda.malloc(SIZE)
    with tms.region("errors", backup="host"):
        kept = cuda.malloc(SIZE)
    cuda.write(kept, b"kept")
    tms.set_disk_backup_dir(tmp_path)
    tms.pause("errors")
    (file,) = tmp_path.iterdir()
    file.unlink()
    for _ in range(2):
        with pytest.raises(tms.ContentsError, match="contents are lost") as caught:
            tms.resume("errors")
        assert caught.value.code == 301
        assert str(file) in str(caught.value)
        assert f"{lost:#x}" in str(caught.value)
        assert "Nothing is lost" not in str(caught.value)
        assert "host memory" not in str(caught.value)
    cuda.free(lost)
    tms.resume("errors")
    assert cuda.read(kept, 4) == b"kept"
    cuda.free(kept)


def test_disk_directory_that_is_none(tmp_path: Path) -> None:
    """Nothing is lost, and the advice concerns the directory, not host memory."""
    file = tmp_path / "file"
    file.touch()
    with tms.region("errors", backup="disk"):
        pointer = cuda.malloc(SIZE)
    tms.set_disk_backup_dir(file)
    with pytest.raises(
        tms.BackupError, match=r"not a directory; call tms\.set_disk_backup_dir"
    ) as caught:
        tms.pause("errors")
    assert "Nothing is lost" in str(caught.value)
    assert "host memory" not in str(caught.value)
    tms.set_disk_backup_dir(tmp_path)
    tms.pause("errors")
    tms.resume("errors")
    cuda.free(pointer)


def test_capture(pointer: int, contents: bytes) -> None:
    with cuda.Capture():
        with pytest.raises(tms.CaptureError) as caught:
            tms.pause("errors")
        assert caught.value.code == 900
    tms.pause("errors")
    tms.resume("errors")
    assert cuda.read(pointer, SIZE) == contents


def test_fork_after_use_is_an_error_and_no_hang() -> None:
    out = children.output(
        """
        import os, cuda, tms
        with tms.region(backup="host"):
            pointer = cuda.malloc(4 << 20)
        tms.pause(); tms.resume()
        child = os.fork()
        if child == 0:
            for call in (tms.pause, tms.resume):
                try:
                    call()
                    print("no error")
                except tms.ForkedError as error:
                    print(error.code, "spawn" in str(error), flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        tms.pause(); tms.resume()
        print("parent goes on")
        """
    )
    assert out.splitlines() == ["3 True", "3 True", "parent goes on"]


def test_fork_before_use_works_on_both_sides() -> None:
    out = children.output(
        """
        import os, tms
        with tms.region("weights"):
            pass
        child = os.fork()
        import cuda
        with tms.region("weights", backup="host"):
            pointer = cuda.malloc(4 << 20)
        cuda.write(pointer, b"kept")
        with tms.paused("weights"):
            pass
        assert cuda.read(pointer, 4) == b"kept"
        if child == 0:
            print("child", flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print("parent")
        """
    )
    assert out.splitlines() == ["child", "parent"]


def test_no_driver() -> None:
    """Reported at once, not taken for a pause of nothing; also once the library was needed."""
    out = children.output(
        """
        import tms
        def tried(call):
            try:
                return call()
            except tms.TmsError as error:
                return f"{error.code} {error}"
        paused = tms.paused("no-such")
        print(tms.stats()["started"], tms.last_error())
        for call in (lambda: tms.pause("no-such"), tms.pause, lambda: tms.resume("wieghts"),
                     paused.__enter__, lambda: tms.prepare("no-such"), tms.trim, tms.serve):
            print(tried(call))
        print(tms.stats()["started"])
        """,
        LD_LIBRARY_PATH="",
    )
    first, *said, last = out.splitlines()
    assert (first, last) == ("False ", "False")
    assert len(said) == 7
    for line in said:
        assert line.startswith("100 ") and "the CUDA driver cannot be loaded: libcuda.so.1" in line
        assert line.endswith(
            "(cudaError 100). No CUDA device was found: check nvidia-smi and CUDA_VISIBLE_DEVICES."
        )
    assert "pausing tag 'no-such' failed" in said[0] and "resuming tag 'wieghts'" in said[2]
    assert "listening failed" in said[6]


def test_not_preloaded() -> None:
    out = children.output(
        """
        import tms
        for call in (tms.pause, tms.resume, tms.stats, tms.region().__enter__,
                     tms.disable().__enter__, tms.paused().__enter__):
            try:
                call()
            except tms.NotPreloadedError as error:
                print(error)
        """,
        preloaded=False,
    )
    assert out.count(f"    LD_PRELOAD={tms.library_path()} python your_script.py\n") == 6
    assert out.count("tms.configure_subprocess()") == 6


def test_not_preloaded_names_the_script(tmp_path: object) -> None:
    script = os.path.join(str(tmp_path), "my train.py")
    with open(script, "w") as file:
        file.write("import tms\ntms.pause()\n")
    result = children.run(
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])",
        script,
        "--steps",
        "3",
        preloaded=False,
    )
    assert result.returncode == 1
    assert f"LD_PRELOAD={tms.library_path()} python '{script}' --steps 3\n" in result.stderr


def test_preload_that_the_loader_refused() -> None:
    result = children.run(
        "import tms; tms.pause()", preloaded=False, LD_PRELOAD="/nowhere/libtms.so"
    )
    assert "LD_PRELOAD is '/nowhere/libtms.so', but the dynamic loader" in result.stderr


def test_another_library() -> None:
    with pytest.raises(tms.TmsError, match="no tms_set_interesting_region"):
        Library(ctypes.CDLL("libc.so.6"))


@pytest.mark.parametrize(
    ("code", "kind", "advice"),
    [
        (1, tms.TmsError, "cudaError 1"),
        (2, tms.OutOfMemoryError, "empty_cache"),
        (3, tms.ForkedError, "spawn"),
        (100, tms.TmsError, "CUDA_VISIBLE_DEVICES"),
        (301, tms.ContentsError, "still paused"),
        (304, tms.BackupError, "Nothing is lost"),
        (401, tms.ContentsError, "still paused"),
        (700, tms.TmsError, "restart"),
        (801, tms.NotSupportedError, "cudaError 801"),
        (900, tms.CaptureError, "what happened"),
        (999, tms.TmsError, "cudaError 999"),
    ],
)
def test_codes(code: int, kind: type[tms.TmsError], advice: str) -> None:
    error = from_code(code, "pausing tag 'a'", "what happened.")
    assert type(error) is kind
    assert (error.code, error.cause) == (code, "what happened.")
    assert str(error).startswith(f"pausing tag 'a' failed: what happened (cudaError {code}).")
    assert advice in str(error)
    assert ("Nothing is lost" in str(error)) == (code in (2, 304))


def test_words_of_the_driver() -> None:
    """The message has the text without the C function and its number; the cause has everything."""
    held = "pause: paused, but memory is still held: cuMemRelease: unknown error (999)"
    error = from_code(999, "pausing tag 'a'", held)
    assert str(error) == (
        "pausing tag 'a' failed: paused, but memory is still held: unknown error (cudaError 999)."
    )
    assert error.cause == held


def test_what_cannot_be_done_is_not_put_down_to_the_driver() -> None:
    """Most causes of 801 lie in the request, and say so themselves."""
    error = from_code(801, "pausing tag 'a'", "a progress function must not pause")
    assert str(error) == (
        "pausing tag 'a' failed: a progress function must not pause (cudaError 801)."
    )
