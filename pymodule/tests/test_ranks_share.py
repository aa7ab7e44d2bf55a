"""tms.distributed over ranks that have each other's memory open.

They use cudaIpcOpenMemHandle, or descriptors of memory that they made themselves (cuMemCreate).
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "together"))

from ranks import Ranks, Told
from simulator import HANGS

MiB = 1 << 20

ALLOCATE = f"""
with tms.region("communication", backup="host"):
    own = cuda.malloc(4 * {MiB})
cuda.write(own, b"rank %d" % rank)
"""
HANDLE = "cuda.ipc_handle(own).hex()"
MAKE = f"""
import sharing
cuda._runtime.cudaFree(None)  # a context
with tms.region("communication", backup="host"):
    own, fd = sharing.made(4 * {MiB})
cuda.write(own, b"rank %d" % rank)
"""
DESCRIPTOR = "[os.getpid(), fd]"
TAKE = "others = [sharing.taken(*d, {}) for i, d in enumerate({}) if i != rank]"
OPEN = "others = [cuda.ipc_open(bytes.fromhex(h)) for i, h in enumerate({}) if i != rank]"
SEEN = "sorted(cuda.read(at, 6).decode() for at in [own, *others])"
HELD = "[t['physical_bytes'] + t['imported_bytes'] for t in tms.stats()['devices'][0]['tags']]"


def shared(ranks: Ranks, by: str = "handles") -> None:
    """Each rank has memory that all others have open."""
    none = [None] * len(ranks.living)
    if by == "handles":
        assert ranks.all(ALLOCATE) == none
        assert ranks.all(OPEN.format(ranks.all(HANDLE))) == none
    else:
        assert ranks.all(MAKE) == none
        assert ranks.all(TAKE.format(4 * MiB, ranks.all(DESCRIPTOR))) == none


@pytest.mark.parametrize(("by", "setting"), [("handles", "ipc"), ("descriptors", "1")])
def test_paused_by_all_ranks_or_none(by: str, setting: str) -> None:
    with Ranks(3, TMS_SHAREABLE=setting) as ranks:
        shared(ranks, by)
        seen, held = [["rank 0", "rank 1", "rank 2"]] * 3, [[12 * MiB]] * 3
        assert ranks.all(SEEN) == seen and ranks.all(HELD) == held
        for _ in range(5):
            assert ranks.all("together.pause('communication')") == [4 * MiB] * 3
            assert ranks.all(HELD) == [[0]] * 3
            assert ranks.all("together.resume()") == [4 * MiB] * 3
            assert ranks.all(SEEN) == seen and ranks.all(HELD) == held
        # One fails after it has unmapped the others' memory, or when others have theirs back.
        for operation, function in (("pause", "cuMemUnmap"), ("resume", "cuMemMap")):
            for nth in (1, 2, 3):
                if operation == "resume":
                    assert ranks.all("together.pause()") == [4 * MiB] * 3
                for timeout in (1, 8, 64, HANGS):  # how long the others wait for a failed one
                    ranks.one(1, f"cuda.fail('{function}', {nth}, 999)")
                    said = ranks.all(f"together.{operation}(timeout={timeout})")
                    ranks.one(1, "cuda.forget_failures()")
                    if "(cudaError 999)" in str(said[0]) or said == [4 * MiB] * 3:
                        break
                if operation == "resume" and said == [4 * MiB] * 3:
                    # A mapping of another's memory, tried again because the rest of that was not
                    # back yet.
                    assert nth > 1
                    continue
                assert {str(each) for each in said} == {str(said[0])}
                assert all(isinstance(each, Told) and each.kind == "GroupError" for each in said)
                assert "(cudaError 999)" in str(said[0])
                if operation == "resume":
                    assert ranks.all(HELD) == [[0]] * 3
                    assert ranks.all("together.resume()") == [4 * MiB] * 3
                assert ranks.all(SEEN) == seen and ranks.all(HELD) == held


def test_one_that_pauses_alone() -> None:
    """It is refused in time, with the pids for which it would be waiting."""
    with Ranks(2, TMS_SHAREABLE="ipc") as ranks:
        shared(ranks)
        ranks.one(0, "from tms._library import load")
        ranks.tell(0, "load().pause('communication', 0.1)")
        told = ranks.outcome(0)
        assert isinstance(told, Told)
        assert f"process {ranks.pid(1)}," in str(told), told
        assert "nothing has changed" in str(told)
        assert ranks.all(SEEN) == [["rank 0", "rank 1"]] * 2
        assert ranks.all("together.pause()") == [4 * MiB] * 2
        assert ranks.all("together.resume()") == [4 * MiB] * 2
        assert ranks.all(SEEN) == [["rank 0", "rank 1"]] * 2
