"""Where contents wait: pinned ahead in host memory, kept for the next pause, or in files."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import cuda
import pytest
from cuda import MiB

import tms

SIZE = 24 * MiB + 5


def test_prepare_needs_memory() -> None:
    """Host memory is refused: an error says so, and the memory works as before."""
    with tms.region("refused", backup="host"):
        pointer = cuda.malloc(SIZE)
    cuda.fail("cuMemHostRegister", 1, 2)
    with pytest.raises(tms.BackupError, match="host memory"):
        tms.prepare("refused", wait=True)
    tms.prepare()
    tms.prepare("refused", wait=True)
    pinned = cuda.calls("cuMemHostRegister")
    cuda.write(pointer, b"still here")
    tms.pause("refused")
    assert cuda.calls("cuMemHostRegister") == pinned
    tms.resume("refused")
    assert cuda.read(pointer, 10) == b"still here"
    cuda.free(pointer)


def kept_in(directory: Path) -> list[os.stat_result]:
    """Files without a name in a directory, which a thread of this process keeps."""
    found = []
    for descriptor in Path("/proc/self/task").glob("*/fd/*"):
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(descriptor).startswith(f"{directory}/"):
                found.append(descriptor.stat())
    return found


def test_disk(tmp_path: Path) -> None:
    contents = os.urandom(SIZE)
    tms.set_disk_backup_dir(tmp_path / "new")
    with tms.region("disk", backup="disk"):
        pointer = cuda.malloc(SIZE)
    cuda.write(pointer, contents)
    before = cuda.free_memory()
    for _ in range(3):
        tms.pause("disk")
        assert cuda.free_memory() >= before + SIZE
        (kept,) = kept_in(tmp_path / "new")
        assert kept.st_size >= SIZE and kept.st_mode & 0o777 == 0o600
        assert list((tmp_path / "new").iterdir()) == []
        tms.resume("disk")
        assert cuda.read(pointer, SIZE) == contents
        tms.trim()
        assert kept_in(tmp_path / "new") == []
    file = tmp_path / "file"
    file.touch()
    tms.set_disk_backup_dir(file)
    words = rf"{file}.* not a directory; call tms\.set_disk_backup_dir.* Nothing is lost"
    with pytest.raises(tms.BackupError, match=words) as caught:
        tms.pause("disk")
    assert "host memory" not in str(caught.value)
    assert cuda.read(pointer, SIZE) == contents
    tms.set_disk_backup_dir(tmp_path)  # set for the process, and so for the next tests
    cuda.free(pointer)
    with pytest.raises(ValueError, match="directory"):
        tms.set_disk_backup_dir("")
