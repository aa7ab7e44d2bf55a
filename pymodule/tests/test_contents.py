"""Contents: only changes are copied, and copies are checked."""

from __future__ import annotations

import os
from typing import Any

import children
import cuda
import pytest
import tags
from cuda import MiB

import tms

SIZE = 12 * MiB


@pytest.mark.parametrize("backup", ["host", "disk", "peer"])
def test_discard(backup: Any) -> None:
    """Contents are lost at that pause, and kept at the next; paused memory keeps its own."""
    with tms.region("discarded", backup=backup, incremental=backup == "host"):
        pointer = cuda.malloc(SIZE)
    contents = os.urandom(SIZE)
    for lost in (False, True, False):
        cuda.write(pointer, contents)
        assert tms.pause("discarded", discard=lost) == SIZE
        assert tms.pause("discarded", discard=not lost) == 0
        assert tags.total("backup_bytes") == (0 if lost else SIZE)
        tms.resume("discarded")
        assert cuda.read(pointer, SIZE) == (bytes(SIZE) if lost else contents)
    cuda.free(pointer)


@pytest.mark.parametrize("backup", [None, "disk", "peer"])
def test_incremental_is_for_host_memory(backup: str | None) -> None:
    with pytest.raises(ValueError, match="needs backup='host'"):
        tms.region("t", backup=backup, incremental=True)


@pytest.mark.parametrize("incremental", ["yes", "no", 1, 0, ""])
def test_incremental_is_a_bool(incremental: object) -> None:
    with pytest.raises(TypeError, match="incremental must be True, False or None, not"):
        tms.region("t", backup="host", incremental=incremental)  # type: ignore[arg-type]


def test_incremental_by_argument_and_by_the_environment() -> None:
    """The environment has the default of host backups, which a region can override."""
    program = """
        import cuda, tms
        def copied_again(**options):
            with tms.region("t", **options):
                pointer = cuda.malloc(4 << 20)
            for _ in range(2):
                before = tms.stats()["devices"][0]["pauses"]["contents_bytes"]
                tms.pause("t")
                tms.resume("t")
            cuda.free(pointer)
            return tms.stats()["devices"][0]["pauses"]["contents_bytes"] - before
        for incremental in None, True, False:
            print(copied_again(backup="host", incremental=incremental))
        """
    nothing, everything = "0", str(4 * MiB)
    out = children.output(program).splitlines()
    assert out == [everything, nothing, everything]
    program += "print(copied_again())\n"
    out = children.output(program, TMS_INIT_ENABLE_INCREMENTAL_BACKUP="1").splitlines()
    assert out == [nothing, nothing, everything, nothing]


def test_verify_finds_what_was_overwritten() -> None:
    """TMS_VERIFY=1: a copy that was written to is refused, by name, and nothing else happens."""
    children.output(
        """
        import ctypes, cuda, tags, tms
        from expecting import raises
        with tms.region("checked", backup="host"):
            pointer = cuda.malloc(6 << 20)
        cuda.write(pointer, b"x" * (6 << 20))
        for _ in range(2):
            tms.pause("checked")
            tms.resume("checked")
        tms.pause("checked")
        address = ctypes.CDLL(None).tms_get_cpu_backup_pointer
        address.restype, address.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64]
        copy = address(pointer, 6 << 20)
        ctypes.memset(copy + (3 << 20), 0, 1)
        with raises(tms.ContentsError, 'tag "checked"', "block 1 ", hex(pointer), "still paused"):
            tms.resume("checked")
        assert tags.total("paused_bytes") == 6 << 20
        ctypes.memset(copy + (3 << 20), ord("x"), 1)
        tms.resume("checked")
        assert cuda.read(pointer, 6 << 20) == b"x" * (6 << 20)
        """,
        TMS_VERIFY="1",
    )


@pytest.mark.parametrize(
    "backup", ["peer:", "peer:x", "peer:-1", "peers", "peer:123", 1, True, "Host", "tape"]
)
def test_backup_kinds_that_are_none(backup: object) -> None:
    with pytest.raises(ValueError, match="backup must be None .* 'host' .* 'disk' .*peer:N"):
        tms.region("t", backup=backup)  # type: ignore[arg-type]
