"""What regions set for a thread, and what they restore."""

from __future__ import annotations

import ctypes
import threading
from typing import get_args

import cuda
import pytest
from simulator import HANGS

import tms

library = ctypes.CDLL(None)
library.tms_get_interesting_region.restype = ctypes.c_bool
library.tms_get_current_tag.restype = ctypes.c_char_p
library.tms_get_enable_cpu_backup.restype = ctypes.c_bool
library.tms_set_enable_disk_backup.argtypes = [ctypes.c_bool]
library.tms_get_enable_disk_backup.restype = ctypes.c_bool
library.tms_get_excluded.restype = ctypes.c_bool


def settings() -> tuple[bool, bytes, bool, bool]:
    """(active, tag, host backup, disk backup) of this thread."""
    return (
        library.tms_get_interesting_region(),
        library.tms_get_current_tag(),
        library.tms_get_enable_cpu_backup(),
        library.tms_get_enable_disk_backup(),
    )


OUTSIDE = (False, b"default", False, False)


def test_sets_and_restores() -> None:
    assert settings() == OUTSIDE
    with tms.region():
        assert settings() == (True, b"default", False, False)
    with tms.region("weights", backup="host"):
        assert settings() == (True, b"weights", True, False)
    assert settings() == OUTSIDE


def test_nested_innermost_wins() -> None:
    with tms.region("outer", backup="host"):
        with tms.region("inner"):
            assert settings() == (True, b"inner", False, False)
            with tms.disable():
                assert settings()[0] is False
                with tms.region("within"):
                    assert settings() == (True, b"within", False, False)
                assert settings()[0] is False
            assert settings() == (True, b"inner", False, False)
        assert settings() == (True, b"outer", True, False)
    assert settings() == OUTSIDE


def test_exclude() -> None:
    def taken() -> bool:
        before = int(cuda._driver.cudasim_stat(b"handles"))
        pointer = cuda.malloc(8 * cuda.MiB)
        try:
            return int(cuda._driver.cudasim_stat(b"handles")) > before
        finally:
            cuda.free(pointer)

    with tms.region("outer"):
        with tms.exclude():
            assert not taken()
            with tms.region("inner"):
                assert not taken()
                with tms.exclude():
                    assert not taken()
                assert not taken()
        assert taken()
        with pytest.raises(ZeroDivisionError), tms.exclude():
            raise ZeroDivisionError
        assert taken()
        with tms.exclude(), tms.disable():
            assert not taken()
        assert settings() == (True, b"outer", False, False)

        @tms.exclude()
        def library_call() -> bool:
            return taken()

        assert not library_call()
        assert taken()
    assert settings() == OUTSIDE


def test_restored_after_exception() -> None:
    with pytest.raises(KeyError), tms.region("outer", backup="host"):
        with pytest.raises(ZeroDivisionError), tms.region("inner"), tms.disable():
            raise ZeroDivisionError
        assert settings() == (True, b"outer", True, False)
        raise KeyError
    assert settings() == OUTSIDE


def test_takes_over_from_disk_backup_and_gives_back() -> None:
    library.tms_set_enable_disk_backup(True)
    try:
        with tms.region("weights", backup="host"):
            assert settings() == (True, b"weights", True, False)
        assert settings()[3] is True
    finally:
        library.tms_set_enable_disk_backup(False)


def test_as_decorator() -> None:
    @tms.region("decorated")
    def inside(depth: int) -> list[bytes]:
        return [settings()[1]] + (inside(depth - 1) if depth else [])

    assert inside(2) == [b"decorated"] * 3
    assert settings() == OUTSIDE


def test_other_threads_are_not_affected() -> None:
    seen: list[object] = []
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        seen.append(settings())
        with tms.region("other"):
            seen.append(library.tms_get_excluded())
            entered.set()
            leave.wait(HANGS)
            seen.append(settings())
        seen.append(settings())

    with tms.region("mine", backup="host"), tms.exclude():
        thread = threading.Thread(target=other)
        thread.start()
        assert entered.wait(HANGS)
        assert settings() == (True, b"mine", True, False) and library.tms_get_excluded()
    assert settings() == OUTSIDE
    leave.set()
    thread.join()
    assert seen == [OUTSIDE, False, (True, b"other", False, False), OUTSIDE]


@pytest.mark.parametrize("tag", ["", "a\0b"])
def test_tag_value(tag: str) -> None:
    with pytest.raises(ValueError, match="tag must not"):
        tms.region(tag)


@pytest.mark.parametrize("tag", [None, 1, b"weights"])
def test_tag_type(tag: object) -> None:
    with pytest.raises(TypeError, match="tag must be a str"):
        tms.region(tag)  # type: ignore[arg-type]


@pytest.mark.parametrize("backup", get_args(get_args(tms.Backup)[0]))
def test_every_backup_of_the_type(backup: tms.Backup) -> None:
    with tms.region("typed", backup=backup):
        assert settings()[1] == b"typed"
