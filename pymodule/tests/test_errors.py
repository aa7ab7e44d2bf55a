"""Errors are typed, with cause and advice, and nothing is lost by them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import children
import cuda
import pytest
import tags
from cuda import MiB
from threads import in_threads

import tms
from tms._errors import from_code
from tms._library import Library

SIZE = 8 * MiB


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
    assert tags.total("paused_bytes", "errors") == SIZE
    cuda.write(other, b"untouched")
    cuda.free(other)
    tms.resume("errors")
    assert tags.total("paused_bytes", "errors") == 0
    assert cuda.read(pointer, SIZE) == contents


def test_paused_out_of_memory(pointer: int, contents: bytes) -> None:
    others = []
    with pytest.raises(tms.OutOfMemoryError), tms.paused("errors"):
        others.append(cuda.malloc(cuda.free_memory() - 4 * MiB))
    cuda.free(others[0])
    tms.resume("errors")
    assert cuda.read(pointer, SIZE) == contents


def test_last_error(pointer: int) -> None:
    """For a failure without an exception, as of cudaMalloc, in the thread where it failed."""
    size = cuda.free_memory() + 4 * MiB
    with tms.region("errors"), pytest.raises(cuda.CudaError, match="^2$"):
        cuda.malloc(size)
    assert "memory" in tms.last_error()
    assert in_threads(tms.last_error) == [""]


def test_several_tags_are_paused_and_resumed_as_one(contents: bytes) -> None:
    """Wherever it fails, all tags are as they were, also those that the pause was to discard."""
    both, pointers = ["one", "two"], []
    for tag in both:
        with tms.region(tag, backup="host"):
            pointers.append(cuda.malloc(SIZE))
        cuda.write(pointers[-1], contents)

    def paused() -> list[bool]:
        return [tags.total("paused_bytes", tag) > 0 for tag in both]

    def whole() -> bool:
        return all(cuda.read(pointer, SIZE) == contents for pointer in pointers)

    for discard in (False, ["one"], ("two",), "two", True):
        for nth in (1, 2):
            cuda.fail("cuMemUnmap", nth, 999)
            with pytest.raises(tms.TmsError, match="^pausing tag 'one', 'two' failed") as caught:
                tms.pause(both, discard=discard)
            assert "cuMemUnmap" in caught.value.cause and "cuMem" not in str(caught.value)
            assert paused() == [False, False] and whole(), (discard, nth)
    assert tms.pause([]) == tms.resume([]) == 0 and paused() == [False, False]
    with pytest.raises(ValueError, match="discard has tags that tag does not name: three"):
        tms.pause(both, discard=["two", "three"])
    with pytest.raises(ValueError, match="discard has tags that tag does not name: one"):
        tms.pause(discard="one")  # without tags it is unclear which others are meant
    with pytest.raises(TypeError, match="tag must be a str such as 'weights', not int"):
        tms.pause(["one", 2])  # type: ignore[list-item]
    assert tms.pause(both) == 2 * SIZE
    for nth in (1, 2):
        cuda.fail("cuMemMap", nth, 999)
        with pytest.raises(tms.TmsError, match="^resuming tag 'two', 'one' failed"):
            tms.resume(("two", "one"))
        assert paused() == [True, True]
    assert tms.resume(both) == 2 * SIZE and whole()
    tms.pause(both, discard=["two"])
    tms.resume(both)
    assert cuda.read(pointers[0], SIZE) == contents
    assert cuda.read(pointers[1], SIZE) != contents
    for pointer in pointers:
        cuda.free(pointer)


def test_capture(pointer: int, contents: bytes) -> None:
    with cuda.Capture():
        with pytest.raises(tms.CaptureError) as caught:
            tms.pause("errors")
        assert caught.value.code == 900
    tms.pause("errors")
    tms.resume("errors")
    assert cuda.read(pointer, SIZE) == contents


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


def test_not_preloaded_names_the_script(tmp_path: Path) -> None:
    script = tmp_path / "my train.py"
    script.write_text("import tms\ntms.pause()\n")
    result = children.python(script, "--steps", "3", preloaded=False)
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
        (401, tms.ContentsError, "what happened"),
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


@pytest.mark.parametrize(
    ("code", "cause", "words"),
    [
        (
            999,
            "pause: paused, but memory is still held: cuMemRelease: unknown error (999)",
            "paused, but memory is still held: unknown error (cudaError 999).",
        ),
        (  # most causes of 801 lie in the request, and say so themselves
            801,
            "nothing can stop the program's threads",
            "nothing can stop the program's threads (cudaError 801).",
        ),
    ],
)
def test_words(code: int, cause: str, words: str) -> None:
    """The message has the text without the C function and its number; the cause has everything."""
    error = from_code(code, "pausing tag 'a'", cause)
    assert str(error) == f"pausing tag 'a' failed: {words}"
    assert error.cause == cause
