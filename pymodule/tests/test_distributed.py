"""tms.distributed pauses all ranks or none, whichever rank fails, and whenever."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "together"))

from ranks import Ranks, Told

HOST = socket.gethostname()
MiB = 1 << 20

ALLOCATE = f"""
with tms.region("weights", backup="host"):
    weights = cuda.malloc(8 * {MiB})
with tms.region("cache"):
    cache = cuda.malloc(4 * {MiB})
cuda.write(weights, b"weights %d" % rank)
"""
HELD = "sum(t['physical_bytes'] for d in tms.stats()['devices'] for t in d['tags'])"
MEET = "together.pause('none')"  # a call of all that changes nothing
CONTENTS = "cuda.read(weights, 9) == b'weights %d' % rank"


def as_before(ranks: Ranks, count: int = 4) -> None:
    """All living ranks have their memory, with its contents, and can be paused."""
    living = len(ranks.living)
    assert ranks.all(HELD) == [12 * MiB] * living
    assert ranks.all(CONTENTS) == [True] * living
    if living == count:
        assert ranks.all("together.pause('weights')") == [8 * MiB] * count
        assert ranks.all("together.resume('weights')") == [8 * MiB] * count


def same_error(outcomes: list[Any], *words: str) -> str:
    """All outcomes are the same GroupError, with this text."""
    assert all(isinstance(each, Told) and each.kind == "GroupError" for each in outcomes), outcomes
    said = {str(each) for each in outcomes}
    assert len(said) == 1, said
    for each in words:
        assert each in str(outcomes[0]), outcomes[0]
    return str(outcomes[0])


def test_pause_and_resume() -> None:
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE)
        for _ in range(3):
            assert ranks.all("together.pause('weights')") == [8 * MiB] * 4
            assert ranks.all(HELD) == [4 * MiB] * 4
            assert ranks.all("together.pause()") == [4 * MiB] * 4
            assert ranks.all("together.pause()") == [0] * 4
            assert ranks.all(HELD) == [0] * 4
            assert ranks.all("together.resume('weights')") == [8 * MiB] * 4
            assert ranks.all("together.resume()") == [4 * MiB] * 4
        as_before(ranks)
        body = f"""
            with together.paused("weights"):
                held = {HELD}
            held
        """
        import textwrap

        assert ranks.all(textwrap.dedent(body)) == [4 * MiB] * 4
        as_before(ranks)
        # A group of two of them: the others are not asked, and may not call.
        ranks.all("pair = dist.new_group([1, 3])")
        ranks.living = [1, 3]
        assert ranks.all("together.pause(group=pair)") == [12 * MiB] * 2
        assert ranks.all("together.resume(group=pair)") == [12 * MiB] * 2
        ranks.living = [0, 1, 2, 3]
        assert ranks.one(0, HELD) == 12 * MiB
        with pytest.raises(Told, match="this process is not in the group"):
            ranks.one(0, "together.pause(group=pair)")
        # What a call leaves in the store, the next call removes.
        server = ranks.server
        assert server is not None
        before = server.num_keys()
        for _ in range(5):
            ranks.all("together.pause()")
            ranks.all("together.resume()")
        assert server.num_keys() <= before + 6


REFUSALS = {
    "captured": (
        "capture = cuda.Capture(); capture.__enter__()",
        "capture.__exit__()",
        "a stream is being captured into a CUDA graph (cudaError 900)",
    ),
    "failing": (
        "cuda.fail('cuMemUnmap', 1, 999)",
        "cuda.forget_failures()",
        f"rank 2 on {HOST}: unknown error (cudaError 999)",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
@pytest.mark.parametrize("fan", [8, pytest.param(1, marks=pytest.mark.thorough)])
def test_one_that_cannot(name: str, fan: int) -> None:
    """In its check, or amid the pause: all are as before, and each names rank and reason."""
    spoil, mend, words = REFUSALS[name]
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE + f"_meeting.FAN = {fan}")
        ranks.all(MEET)  # so that all know each one's host
        ranks.one(2, spoil)
        outcomes = ranks.all("together.pause('weights', timeout=600)")
        ranks.one(2, mend)
        said = same_error(outcomes, "pausing tag 'weights' on 4 ranks failed, and all", words)
        assert f"rank 2 on {HOST}: " in said
        as_before(ranks)
        ranks.all("together.pause()")
        if name == "failing":  # and a resume: what was resumed is paused again
            ranks.one(2, "cuda.fail('cuMemCreate', 1, 2)")
            outcomes = ranks.all("together.resume(timeout=600)")
            same_error(outcomes, "resuming all tags on 4 ranks failed", f"rank 2 on {HOST}: ")
            assert ranks.all(HELD) == [0] * 4
        assert ranks.all("together.resume()") == [12 * MiB] * 4
        as_before(ranks)


@pytest.mark.parametrize("other", ["pause('cache')", "pause()", "resume('weights')"])
def test_ranks_that_ask_for_different_things(other: str) -> None:
    with Ranks(3) as ranks:
        ranks.all(ALLOCATE)
        for rank in ranks.living:
            ranks.tell(rank, f"together.{other}" if rank == 2 else "together.pause('weights')")
        words = f"rank 2: it asks for {other} while rank 0 asks for pause('weights'): all ranks of"
        for rank in ranks.living:
            with pytest.raises(Told) as caught:
                ranks.answer(rank)
            assert caught.value.kind == "GroupError" and words in str(caught.value)
        as_before(ranks, 3)


def test_what_was_paused_before_stays_paused() -> None:
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE + "tms.pause('cache')")
        ranks.one(1, "cuda.fail('cuMemUnmap', 1, 999)")
        same_error(ranks.all("together.pause(timeout=600)"), "rank 1 on ")
        assert ranks.all(HELD) == [8 * MiB] * 2
        assert ranks.all(CONTENTS) == [True] * 2


def test_host_memory_is_counted_once_for_a_machine() -> None:
    """Each rank alone would fit."""
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE)
        real = ranks.all("tms.stats()['host_available_bytes']")
        assert all(each is None or each > 1 << 20 for each in real)
        ranks.all(
            f"whole = _together._control.stats\n"
            f"room = {20 * MiB} + rank\n"
            "_together._control.stats = lambda: {**whole(), 'host_available_bytes': room}"
        )
        same_error(
            ranks.all("together.pause(timeout=600)"),
            "failed, and all are as before. ",
            f"rank 0 on {HOST}: {32 * MiB:,} bytes of host memory are needed by its 4 ranks "
            f"together, and {20 * MiB:,} are available (cudaError 304)",
        )
        assert ranks.all(HELD) == [12 * MiB] * 4
        ranks.all("pair = dist.new_group([1, 3])")
        ranks.living = [1, 3]
        assert ranks.all("together.pause(group=pair)") == [12 * MiB] * 2
        assert ranks.all("together.resume(group=pair)") == [12 * MiB] * 2
        ranks.one(3, f"room = {7 * MiB}")
        same_error(ranks.all("together.pause(group=pair)"), "rank 1 on ", "by its 2 ranks together")
        ranks.living = [0, 1, 2, 3]
        ranks.all(f"room = {40 * MiB}")
        as_before(ranks)


def test_a_refusal_ends_what_is_live() -> None:
    """Every rank goes on, so its next pause keeps all again."""
    need = "sum(t['pause_host_bytes'] for d in tms.stats()['devices'] for t in d['tags'])"
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE)
        ranks.all(
            f"from tms import _library\n_library.load().c.tms_live(weights, {4 * MiB}, None, 0)"
        )
        assert ranks.all(need) == [4 * MiB] * 2
        ranks.one(1, "capture = cuda.Capture(); capture.__enter__()")
        same_error(ranks.all("together.pause()"), "a stream is being captured")
        ranks.one(1, "capture.__exit__()")
        assert ranks.all(need) == [8 * MiB] * 2
        as_before(ranks, 2)


def test_waits_for_device_memory() -> None:
    """A rank waits as tms.configure says, before any rank resumes; else all fail."""
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE)
        assert ranks.all("together.pause()") == [12 * MiB] * 2
        ranks.one(1, "hog = cuda.malloc(cuda.free_memory())")
        same_error(ranks.all("together.resume()"), "rank 1 on ", "0 bytes free, and ")
        ranks.one(
            1,
            "import time, types\n"
            "gives = lambda seconds: cuda.free(hog)\n"
            "_together.time = types.SimpleNamespace(monotonic=time.monotonic, sleep=gives)\n"
            "tms.configure(resume_wait=600)",
        )
        assert ranks.all("together.resume(timeout=600)") == [12 * MiB] * 2
        as_before(ranks, 2)


def test_room_for_files(tmp_path: Path) -> None:
    where = tmp_path / "not" / "there"
    with Ranks(2, CUDASIM_MEMORY="64T", TMS_DISK_BACKUP_DIR=str(where)) as ranks:
        found = os.statvfs(tmp_path)
        size = found.f_bavail * found.f_frsize * 3 // 4 // (2 * MiB) * 2 * MiB
        ranks.all(f"with tms.region('large', backup='disk'): large = cuda.malloc({size})")
        same_error(ranks.all("together.pause(timeout=600)"), f"bytes of room in {where} are needed")
        assert ranks.all(HELD) == [size] * 2


def test_a_rank_without_the_library() -> None:
    with Ranks(2, own={1: {"LD_PRELOAD": ""}}) as ranks:
        outcomes = ranks.all("together.pause(timeout=600)")
        same_error(outcomes, f"rank 1 on {HOST}: libtms.so is not loaded into this process")


DEATHS = {
    "before it": "os.kill(os.getpid(), signal.SIGKILL)",
    "in phase one": (
        "_together.Part.check = lambda self: os.kill(os.getpid(), signal.SIGKILL)\n"
        "together.pause('weights')"
    ),
    "in phase two": "cuda.fail('cuMemUnmap', 1, -1)\ntogether.pause('weights')",
    "after its pause": (
        "do = _together.Part.do\n"
        "_together.Part.do = lambda self: (do(self), os.kill(os.getpid(), signal.SIGKILL))\n"
        "together.pause('weights')"
    ),
}


PATIENT = """
restart = _meeting._Call.restart
def patient(call):
    restart(call)
    call._until += 0 if hasattr(call, "number") else 600  # in phase one
_meeting._Call.restart = patient
"""


def have_said(ranks: Ranks, early: list[int]) -> None:
    """Starts a pause on ranks, and waits until each has posted its part of phase one."""
    assert ranks.server is not None
    before = ranks.server.num_keys()
    for rank in early:
        ranks.tell(rank, "together.pause('weights', timeout=600)")
    while ranks.server.num_keys() < before + len(early) + 1:  # and what they ask for
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("victim", "fan"),
    [
        (0, 8),
        pytest.param(2, 8, marks=pytest.mark.thorough),
        pytest.param(2, 1, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("when", DEATHS)
def test_a_rank_is_killed(when: str, victim: int, fan: int) -> None:
    """When time is up, the others come back to one state, and name the missing one."""
    own = {victim: {"CUDASIM_FAIL": "cuMemUnmap:1:kill"}} if when == "in phase two" else {}
    death = DEATHS[when].replace("cuda.fail('cuMemUnmap', 1, -1)\n", "")
    with Ranks(4, own=own) as ranks:
        ranks.all(ALLOCATE + f"_meeting.FAN = {fan}; _meeting._SLICE = 0.1")
        ranks.all(MEET)  # so that all know each one's host
        early: list[int] = []
        if when in ("before it", "in phase one"):
            early = {0: [1, 2], 2: [1, 3] if fan > 1 else [3]}[victim]  # missed, too, if slow
            have_said(ranks, early)
        else:
            ranks.all(PATIENT)
        for rank in set(ranks.living).difference(early):
            code = death if rank == victim else "together.pause('weights', timeout=1.5)"
            ranks.tell(rank, code)
        ranks.dead(victim)
        outcomes = [ranks.outcome(rank) for rank in ranks.living]
        same_error(
            outcomes,
            "all are as before",
            f"rank {victim} on {HOST}: it has not answered in time",
            "(cudaError 909)",
        )
        as_before(ranks)


@pytest.mark.parametrize("known", [False, True])
def test_one_that_comes_late(known: bool) -> None:
    """It gets the others' answer, and can take part again; also if it has made no call yet."""
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE)
        if known:
            ranks.all(MEET)
        ranks.living = [0, 1, 3]
        first = ranks.all("together.pause(timeout=1)")
        where = f"rank 2 on {HOST}" if known else "rank 2"
        same_error(first, f"{where}: it has not answered in time")
        second = ranks.all("together.pause(timeout=1)")
        same_error(second, f"{where}: it has not answered in time")
        ranks.living = [0, 1, 2, 3]
        for before in first, second:
            with pytest.raises(Told) as caught:
                ranks.one(2, "together.pause(timeout=1)")
            assert str(caught.value) == str(before[0])
        as_before(ranks)


def test_a_call_that_one_rank_does_not_make() -> None:
    """As where its own code raises before it. The others' call fails; the next ones are whole."""
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE)
        ranks.all(MEET)
        ranks.living = [0]
        same_error(ranks.all("together.pause('weights', timeout=0.5)"), "rank 1 on ", "in time")
        ranks.living = [0, 1]
        ranks.tell(0, "together.pause('weights', timeout=600)")
        while not ranks.one(
            1, "_meeting_of = [*together._meetings.values()][0][1]\n_meeting_of.there('3/asks')"
        ):
            time.sleep(0.01)
        ranks.tell(1, "together.pause('weights', timeout=600)")
        assert [ranks.outcome(rank) for rank in (0, 1)] == [8 * MiB] * 2
        assert ranks.all("together.resume('weights', timeout=600)") == [8 * MiB] * 2
        as_before(ranks)


def test_ranks_that_are_one_call_apart_meet_again() -> None:
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE)
        ranks.tell(0, "together.pause('weights', timeout=600)")
        ranks.tell(1, "together.resume('weights', timeout=600)")
        for rank in (0, 1):
            same_error([ranks.outcome(rank)], "rank 1: it asks for resume('weights')")
        ranks.tell(0, "together.resume('weights', timeout=600)")
        ranks.tell(1, "together.pause('weights', timeout=600)")
        same_error([ranks.outcome(1)], "rank 1: it asks for")
        ranks.one(1, "together.resume('weights', timeout=600)")
        assert ranks.outcome(0) == 0
        as_before(ranks)


def test_a_resume_that_is_taken_back_loses_nothing() -> None:
    """Memory of the tag that was active before stays so, with its contents."""
    with Ranks(2) as ranks:
        ranks.all(
            "with tms.region('cache'): first = cuda.malloc(8 << 20)\n"
            "tms.pause('cache')\n"
            "with tms.region('cache'): second = cuda.malloc(8 << 20)\n"
            "cuda.write(second, b'contents')"
        )
        ranks.one(1, "cuda.fail('cuMemCreate', 1, 2)")
        same_error(ranks.all("together.resume('cache', timeout=600)"), "rank 1 on ")
        assert ranks.all("cuda.read(second, 8) == b'contents'") == [True] * 2
        assert ranks.all(HELD) == [8 * MiB] * 2
        assert ranks.all("together.resume('cache', timeout=600)") == [8 * MiB] * 2


def test_a_group_that_is_made_again() -> None:
    """Over another store, at the same address as under torchrun, or over the same one."""
    with Ranks(2) as ranks:
        ranks.all(ALLOCATE)
        for number, again in enumerate(
            (
                "store = _meeting_store()",
                "store = dist.TCPStore(store.host, store.port)",
                "store = dist.PrefixStore('again', store)",
            )
        ):
            assert ranks.all("together.pause('weights', timeout=600)") == [8 * MiB] * 2
            assert ranks.all("together.resume('weights', timeout=600)") == [8 * MiB] * 2
            # Gloo has another name each time: else one rank may read the address that the other had
            # in the group before, which PyTorch leaves in the store, and wait for it.
            made = ranks.all(
                "from torch.distributed import distributed_c10d\n"
                "store = distributed_c10d._get_default_store()\n"
                "_meeting_store = lambda: store\n"
                "while hasattr(store, 'underlying_store'): store = store.underlying_store\n"
                f"{again}\n"
                "dist.destroy_process_group()\n"
                "counts = getattr(distributed_c10d, '_world', distributed_c10d)  # or a stand-in\n"
                f"counts.group_count = {number + 1}\n"
                f"dist.init_process_group('gloo', store=store, rank=rank, world_size=2)"
            )
            assert made == [None] * 2
        assert ranks.all("together.pause('weights', timeout=600)") == [8 * MiB] * 2
        ranks.all("together.resume('weights', timeout=600)")
        as_before(ranks)


def test_workers_of_vllm_sleep_together() -> None:
    """vLLM schedules for all workers of an engine: no one sleeps if one of them cannot."""
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE)
        ranks.all(
            "import sys, types\n"
            "from tms import _vllm\n"
            "sys.modules['torch.distributed'] = dist\n"
            "allocator = types.SimpleNamespace(workers=2)\n"
            "sleep = lambda: _vllm.Allocator._together(allocator, ['weights', 'cache'], ['cache'])"
        )
        ranks.living = [2, 3]  # the other two are another engine
        ranks.one(3, "cuda.fail('cuMemHostRegister', 1, 2)")
        same_error(ranks.all("sleep()"), "rank 3 on ")
        assert ranks.all(HELD) == [12 * MiB] * 2
        assert ranks.all("sleep()") == [12 * MiB] * 2
        assert ranks.all("tms.resume()") == [12 * MiB] * 2
        assert ranks.all(CONTENTS) == [True] * 2


def test_one_that_is_stopped() -> None:
    """Another rank waits for it as well, and yet it alone is named."""
    with Ranks(4) as ranks:
        ranks.all(ALLOCATE + "_meeting.FAN = 1; _meeting._SLICE = 0.1")
        ranks.all("together.pause('weights'); together.resume('weights')")
        os.kill(ranks.pid(2), signal.SIGSTOP)
        ranks.living = [0, 1]
        have_said(ranks, [3])
        outcomes = [*ranks.all("together.pause('weights', timeout=1)"), ranks.outcome(3)]
        said = same_error(outcomes, f"all are as before. rank 2 on {HOST}: it has not answered")
        os.kill(ranks.pid(2), signal.SIGCONT)
        with pytest.raises(Told) as caught:
            ranks.one(2, "together.pause('weights', timeout=600)")
        assert str(caught.value) == said
        ranks.living = [0, 1, 2, 3]
        as_before(ranks)


def test_the_store_is_lost() -> None:
    """Its process is killed while the others wait in the first phase, or in the second."""
    for spoil in (
        "_meeting.Meeting.wait = lambda self, keys, *given, **more: (\n"
        "    self.store.wait(keys[:1], _meeting.datetime.timedelta(seconds=600)),\n"
        "    os.kill(os.getpid(), signal.SIGKILL))\n"
        "together.pause('weights', timeout=600)",
        "do = _together.Part.do\n"
        "_together.Part.do = lambda self: (do(self), os.kill(os.getpid(), signal.SIGKILL))\n"
        "together.pause('weights', timeout=600)",
    ):
        with Ranks(3, store_of=0) as ranks:
            ranks.all(ALLOCATE)
            ranks.tell(0, spoil)
            ranks.tell(1, "together.pause('weights', timeout=600)")
            if "Part.do" in spoil:
                ranks.tell(2, "together.pause('weights', timeout=600)")
            ranks.dead(0)
            if "Part.do" not in spoil:  # the store is gone before rank 2 comes
                ranks.tell(2, "together.pause('weights', timeout=600)")
            for rank in ranks.living:
                with pytest.raises(Told, match="store does not answer") as caught:
                    ranks.answer(rank)
                assert caught.value.kind == "GroupError"
                assert "rank is as before" in str(caught.value) or "changed" in str(caught.value)
            as_before(ranks)


def test_interrupted() -> None:
    """Ctrl-C on one rank while it waits for another: all get an error, and are as before."""
    with Ranks(3) as ranks:
        ranks.all(ALLOCATE + "_meeting._SLICE = 0.1")
        assert ranks.server is not None
        before = ranks.server.num_keys()
        for rank in (0, 1):
            ranks.tell(rank, "together.pause(timeout=600)")
        while ranks.server.num_keys() < before + 5:  # next, asks, two hosts, and rank 1's answer
            time.sleep(0.01)
        os.kill(ranks.pid(1), signal.SIGINT)
        with pytest.raises(Told) as caught:
            ranks.answer(1)
        assert caught.value.kind == "KeyboardInterrupt"
        with pytest.raises(Told, match=f"rank 1 on {HOST}: KeyboardInterrupt"):
            ranks.answer(0)
        with pytest.raises(Told, match=f"rank 1 on {HOST}: KeyboardInterrupt"):
            ranks.one(2, "together.pause(timeout=600)")
        as_before(ranks, 3)


def test_arguments() -> None:
    with Ranks(1) as ranks:
        for code, words in {
            "together.pause(timeout=0)": "timeout must be a number of seconds above 0, not 0",
            "together.pause(timeout=float('nan'))": "timeout must be",
            "together.pause('')": "tag must not be empty",
            "dist.destroy_process_group(); together.pause()": "there is no process group",
        }.items():
            with pytest.raises(Told, match=words) as caught:
                ranks.one(0, code)
            assert caught.value.kind == "ValueError"
