"""What a pause keeps of memory: what is live, and no blocks of zeros."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator

import children
import cuda
import pytest
import tags
from cuda import MiB

import tms
from tms import _library


@dataclasses.dataclass
class Tensor:
    """What `tms.live` uses of a PyTorch tensor of bytes."""

    pointer: int
    shape: tuple[int, ...]
    contiguous: bool = True

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape)

    def data_ptr(self) -> int:
        return self.pointer

    def is_contiguous(self) -> bool:
        return self.contiguous


@dataclasses.dataclass
class Mask:
    """An array of bools."""

    mask: list[bool]

    def tolist(self) -> list[bool]:
        return self.mask


class bool_(int):
    """A bool as numpy's, which is none of Python's."""


SIZE = 16 * MiB


@pytest.fixture
def cache() -> Iterator[tuple[int, bytes]]:
    contents = os.urandom(SIZE)
    with tms.region("live", backup="host"):
        pointer = cuda.malloc(SIZE)
    cuda.write(pointer, contents)
    yield pointer, contents
    tms.resume()
    cuda.free(pointer)


def host_bytes(tag: str) -> int:
    (entry,) = [entry for entry in tags.entries() if entry["tag"] == tag]
    return entry["host_bytes"]


K = 1 << 10
ROWS = 4 * MiB  # of a tensor with four


@pytest.mark.parametrize(
    ("shape", "parts", "dim", "kept"),
    [
        ((SIZE,), [(5 * MiB, 64 * K), (MiB, 3)], 0, [(MiB, 3), (5 * MiB, 64 * K)]),
        ((SIZE,), [], 0, []),
        ((4, ROWS), [True, False, True, True], 0, [(0, ROWS), (2 * ROWS, 2 * ROWS)]),
        ((4, ROWS), Mask([False, True]), 0, [(2 * ROWS, 2 * ROWS)]),
        ((4, ROWS), [bool_(0), bool_(1)], 0, [(2 * ROWS, 2 * ROWS)]),
        (
            (4, 8, ROWS // 8),
            [False, False, True, False],
            1,
            [(i * ROWS + MiB * 2, MiB) for i in range(4)],
        ),
        ((2, 2, ROWS), [True, False], -2, [(0, ROWS), (2 * ROWS, ROWS)]),
    ],
)
def test_live(
    cache: tuple[int, bytes],
    shape: tuple[int, ...],
    parts: list[tuple[int, int]],
    dim: int,
    kept: list[tuple[int, int]],
) -> None:
    pointer, contents = cache
    for _ in range(2):
        tms.live(Tensor(pointer, shape), parts, dim=dim)
        tms.pause("live")
        # each range of a page or more; host memory is counted as it is taken
        assert host_bytes("live") == sum(size for _, size in kept)
        tms.resume("live")
        for offset, size in kept:
            assert cuda.read(pointer + offset, size) == contents[offset : offset + size]
        cuda.write(pointer, contents)
    tms.pause("live")
    assert host_bytes("live") == SIZE
    tms.resume("live")
    assert cuda.read(pointer, SIZE) == contents


def test_layers_with_one_mask(cache: tuple[int, bytes]) -> None:
    pointer, contents = cache
    layers = [Tensor(pointer + i * ROWS, (8, ROWS // 8)) for i in range(4)]
    tms.live([*layers, Tensor(0, (0,))], [False, True, False, False])
    tms.pause("live")
    assert host_bytes("live") == SIZE // 4
    tms.resume("live")
    for i in range(4):
        at = i * ROWS + MiB
        assert cuda.read(pointer + at, MiB) == contents[at : at + MiB]


def test_sparse() -> None:
    with tms.region("sparse", backup="sparse"):
        pointer = cuda.malloc(SIZE)
    some = os.urandom(MiB)
    cuda.write(pointer + 5 * MiB, some)
    with tms.paused("sparse"):
        assert host_bytes("sparse") == 2 * MiB
    assert cuda.read(pointer, SIZE) == bytes(5 * MiB) + some + bytes(10 * MiB)
    cuda.free(pointer)


def test_settings() -> None:
    library = _library.load()
    with tms.region(backup="sparse"):
        assert (library.backup, library.incremental) == (b"sparse", False)
    with pytest.raises(ValueError, match="incremental=True needs backup='host', not .*'sparse'"):
        tms.region(backup="sparse", incremental=True)
    out = children.output(
        """
        import tms
        from tms import _library
        print(_library.load().backup.decode())
        """,
        TMS_INIT_ENABLE_SPARSE_BACKUP="1",
    )
    assert out == "sparse\n"


def test_errors(cache: tuple[int, bytes]) -> None:
    pointer, _ = cache
    whole = Tensor(pointer, (SIZE,))
    for pair in [(-1, 5), (0, SIZE + 1), (SIZE + 1, 0), (5, -1), (True, False)]:
        with pytest.raises(ValueError, match=r"is no pair \(offset, size\) within 16777216 bytes"):
            tms.live(whole, [pair])
    with pytest.raises(ValueError, match="a mask of 3 blocks does not divide dimension 0"):
        tms.live(whole, [True, False, True])
    with pytest.raises(ValueError, match="must be contiguous"):
        tms.live(Tensor(pointer, (SIZE,), contiguous=False), [True])
    with pytest.raises(tms.TmsError, match="noting what is live failed: .* is in no region"):
        tms.live(Tensor(0x1000, (8,)), [])
    tms.pause("live")
    assert host_bytes("live") == SIZE, "nothing has been noted"
    with pytest.raises(tms.TmsError, match="is paused: say what is live before a pause"):
        tms.live(whole, [True])


def test_taken_back(cache: tuple[int, bytes]) -> None:
    """A program that goes on without a pause keeps all."""
    pointer, contents = cache
    tms.live(Tensor(pointer, (SIZE,)), [])
    tms.live(Tensor(pointer, (SIZE,)), [True])
    with tms.paused("live"):
        assert host_bytes("live") == SIZE
    assert cuda.read(pointer, SIZE) == contents
