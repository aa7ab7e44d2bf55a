"""Ranks of a job go on to another version of their sets together, or none does."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from publishing import House

sys.path.insert(0, str(Path(__file__).parent / "together"))

from ranks import Ranks, Told

FOLLOW = """
import ctypes
from tms._kept_set import Set
from tms._kept_versions import Following
from tms._library import load

def write(value):
    c, address = load().c, ctypes.c_void_p()
    made = Set(load(), name, 'writing', c.tms_kept_create, 0)
    for chunk in (3, 2):
        made.check(c.tms_kept_add(made.handle, chunk << 20, ctypes.byref(address)), 'writing')
        cuda.write(address.value, bytes([value]))
    made.seal(b'{}')

def follow(keeps=True):
    opened = Set(load(), name, 'attaching', load().c.tms_kept_open)
    opened.check(load().c.tms_kept_attach(opened.handle), 'attaching')
    at = []
    for chunk in range(2):
        address = ctypes.c_void_p()
        load().c.tms_kept_chunk(opened.handle, chunk, ctypes.byref(address), None, None)
        at.append(address.value)
    return Following(name, opened, {}, keeps), at

def values():
    return [cuda.read(address, 1)[0] for address in at]

name = 'policy-rank%d' % rank
write(1)
policy, at = follow()
"""


@pytest.fixture
def four() -> Iterator[Ranks]:
    place = tempfile.mkdtemp(prefix="tms-test-", dir="/tmp")
    shared = f"ranks-{os.getpid()}-{Path(place).name}"[-60:]
    with Ranks(4, XDG_RUNTIME_DIR=place, TMPDIR=place, CUDASIM_SHARED=shared) as ranks:
        assert ranks.all(FOLLOW) == [None] * 4
        yield ranks
    House(Path(place)).end()  # the keeper, which has the sets of the ranks
    shutil.rmtree(place, ignore_errors=True)


def test_four_ranks_go_on_and_back(four: Ranks) -> None:
    for version in range(2, 52):
        four.all(f"write({version})")
        assert four.all("together.advance(policy)") == [version] * 4
        assert four.all("values()") == [[version] * 2] * 4
        assert four.all("together.back(policy)") == [version - 1] * 4
        assert four.all("values()") == [[version - 1] * 2] * 4
        assert four.all("together.advance(policy)") == [version] * 4


def test_no_rank_goes_on_if_one_cannot(four: Ranks) -> None:
    four.all("write(2)")
    for call in ("cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemImportFromShareableHandle"):
        for nth in (1, 2):
            four.one(2, f"cuda.fail({call!r}, {nth}, 999)")
            told = four.all("together.advance(policy)")
            for each in told:
                assert isinstance(each, Told) and each.kind == "GroupError"
                assert "rank 2" in str(each) and "advancing on 4 ranks failed" in str(each)
            four.all("cuda.forget_failures()")
            four.one(2, "tms.resume()")
            assert four.all("values()") == [[1, 1]] * 4
            assert four.all("policy.version") == [1] * 4
    assert four.all("together.advance(policy)") == [2] * 4
    assert four.all("values()") == [[2, 2]] * 4


def test_ranks_that_find_different_versions(four: Ranks) -> None:
    four.all("write(2)")
    four.one(1, "write(3)")
    for told in four.all("together.advance(policy)"):
        assert isinstance(told, Told) and "advance('to version 3')" in str(told)
    assert four.all("values()") == [[1, 1]] * 4
    for rank in (0, 2, 3):
        four.one(rank, "write(3)")
    assert four.all("together.advance(policy)") == [3] * 4


def test_ranks_of_which_some_have_lost_a_version(four: Ranks) -> None:
    """The next version of these does not pass for the version that the others still have."""
    four.all("write(2)")
    four.one(0, "other = follow()")
    House(Path(four.one(0, "os.environ['XDG_RUNTIME_DIR']"))).kill_keeper()
    assert four.one(0, "policy.newest") == 2
    four.one(0, "del other")
    for rank in (1, 2, 3):
        four.one(rank, "write(3)")
    for told in four.all("together.advance(policy)"):
        assert isinstance(told, Told) and "advance('to version 3')" in str(told)
    assert four.all("values()") == [[1, 1]] * 4
    four.one(0, "write(3)")
    assert four.all("together.advance(policy)") == [3] * 4
    assert four.all("values()") == [[3, 3]] * 4


def test_a_rank_that_is_killed(four: Ranks) -> None:
    four.all("write(2)")
    four.one(3, "cuda.fail('cuMemMap', 2, -1)")
    for rank in four.living:
        four.tell(rank, "together.advance(policy, timeout=5)")
    four.dead(3)
    for rank in four.living:
        told = four.outcome(rank)
        assert isinstance(told, Told) and "rank 3" in str(told)
    assert four.all("values()") == [[1, 1]] * 3
    assert four.all("policy.version") == [1] * 3


def test_ranks_that_sleep(four: Ranks) -> None:
    four.all("write(2)")
    assert all(isinstance(freed, int) for freed in four.all("together.pause()"))
    assert four.all("together.advance(policy)") == [2] * 4
    four.all("together.resume()")
    assert four.all("values()") == [[2, 2]] * 4


def test_a_return_that_has_failed_can_be_repeated(four: Ranks) -> None:
    four.all("write(2)")
    assert four.all("together.advance(policy)") == [2] * 4
    four.one(2, "cuda.fail('cuMemMap', 1, 999)")
    for told in four.all("together.back(policy)"):
        assert isinstance(told, Told) and "all have the versions that they had" in str(told)
    four.all("cuda.forget_failures()")
    assert four.all("values()") == [[2, 2]] * 4
    assert four.all("together.back(policy)") == [1] * 4
    assert four.all("values()") == [[1, 1]] * 4
    for told in four.all("together.back(policy)"):
        assert isinstance(told, Told) and "no version before" in str(told)


def test_a_difference_moves_nothing(four: Ranks) -> None:
    four.all("write(2)")
    assert four.all("together.advance(policy)") == [2] * 4
    four.one(1, "write(3)")
    maps = four.one(1, "cuda.calls('cuMemMap')")
    for told in four.all("together.advance(policy)"):
        assert isinstance(told, Told) and "to version 3" in str(told)
    assert four.one(1, "cuda.calls('cuMemMap')") == maps
    assert four.all("together.back(policy)") == [1] * 4


def test_a_rank_is_taken_back_whatever_its_versions_are_called(four: Ranks) -> None:
    four.all("Following.version = property(lambda self: 0); Following.newest = Following.version")
    four.all("write(2)")
    four.one(2, "cuda.fail('cuMemMap', 1, 999)")
    for told in four.all("together.advance(policy)"):
        assert isinstance(told, Told) and "rank 2" in str(told)
    assert four.all("values()") == [[1, 1]] * 4


def test_a_rank_without_a_set_is_heard_by_all(four: Ranks) -> None:
    four.all("write(2)")
    four.all("from tms._kept_together import move")
    asked = "move('advance', [policy] * (rank != 1), together._meeting(None), 60)"
    for told in four.all(asked):
        assert isinstance(told, Told) and "rank 1" in str(told)
        assert "it follows no set" in str(told)
    assert four.all("values()") == [[1, 1]] * 4
    assert four.all("together.advance(policy)") == [2] * 4
