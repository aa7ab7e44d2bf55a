"""Sets that go to host memory, to disk, and back, and moves that are killed."""

from __future__ import annotations

import json
import os
import signal
import time

import publishing
import pytest
from publishing import INTACT, OVERWRITE, House, MiB, large, until
from simulator import DEVICE_MEMORY, HANGS

house = publishing.house


def test_a_set_goes_down_and_comes_back(house: House) -> None:
    user = large(house)
    before, size = user.free(), 12 * MiB
    for steps in (["host"], ["disk"], ["host", "disk", "host"]):
        for to in steps:
            assert "set: 12.00 MiB" in house.move("demote", "set", "--to", to)
            assert [(one["place"], one["bytes"]) for one in house.sets()] == [(to, size)]
            assert user.free() == before + size
            assert ("in host memory" if to == "host" else "on disk") in house.move()
        assert "on the device" in house.move("promote", "set")
        assert user.free() == before
        user.does("attached()")
        assert user.run(INTACT)
        assert "CUDA error 1" in user.run(OVERWRITE.format("tensors['1']"))
        user.does("del tensors")
        house.move("demote", "set")
        user.does("attached(copy=True)")  # which promotes it
        assert user.run(INTACT) and house.sets()[0]["place"] == ""
        user.does("del tensors")
        until(lambda: house.sets()[0]["users"] == [])
    assert not [name for name in os.listdir(house.place) if name.startswith("tms-set")]
    house.move("demote", "set")
    assert "dropped" in house.move("drop", "set")
    assert user.free() == before + size and house.sets() == []


def test_what_is_open_is_not_demoted(house: House) -> None:
    user, other = large(house), house.program()
    user.does("attached()")
    other.does("k = tms.kept('set').__enter__()")
    user.run("tms.pause()")
    refused = house.command("kept", "demote", "set")
    users = " ".join(map(str, sorted([user.process.pid, other.process.pid])))
    assert refused.returncode == 1 and f"process {users} has it open" in refused.stderr
    [one] = house.sets()
    assert one["place"] == "" and len(one["users"]) == 2
    user.run("tms.resume()")
    assert user.run(INTACT)
    assert "no complete set of that name" in house.command("kept", "demote", "other").stderr
    assert "host or disk" in house.command("kept", "demote", "set", "--to", "moon").stderr


def test_host_memory_frees_nothing_where_the_device_has_none(house: House) -> None:
    large(house)
    refused = house.command("kept", "demote", "set", CUDASIM_INTEGRATED="1")
    assert refused.returncode == 1 and "give --to disk" in refused.stderr
    assert house.sets()[0]["place"] == ""
    house.move("demote", "set", "--to", "disk", CUDASIM_INTEGRATED="1")


@pytest.mark.thorough
def test_many_open_what_is_demoted(house: House) -> None:
    """One of them brings it back: there is no room for two."""
    programs = [large(house), *(house.program() for _ in range(4))]
    programs[0].does("more = [torch.filled(1, 30 << 20, dtype=torch.uint8) for _ in range(8)]")
    before = programs[0].free()
    assert before == 4 * MiB
    house.move("demote", "set", "--to", "disk")
    for program in programs:
        program.tell(json.dumps("attached()"))
    for program in programs:
        assert json.loads(program.answer()) is None
        assert program.run(INTACT)
    assert [len(one["users"]) for one in house.sets()] == [5]
    assert programs[0].free() == before


def test_moves_beside_publishes_and_attaches(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 1)")
    for i in range(30):
        moving = house.start("kept", "demote", "set")
        maker.tell(json.dumps(f"published('set', {i})"))
        user.tell(json.dumps("attached()"))
        assert json.loads(maker.answer()) is None
        assert json.loads(user.answer()) is None
        assert user.run("value()") in (i - 1, i, 1)
        _, words = moving.communicate(timeout=HANGS)
        assert moving.returncode == 0 or "has it open" in words
        assert [one["sealed"] > 0 for one in house.sets() if not one["replaced"]] == [True]
    user.does("attached()")
    assert user.run("value()") == 29
    user.does("del tensors")
    until(lambda: DEVICE_MEMORY - user.free() <= 2 * MiB)


@pytest.mark.parametrize("function", ["cuMemImportFromShareableHandle", "cuMemcpyDtoHAsync_v2"])
def test_a_demotion_that_is_killed(house: House, function: str) -> None:
    user = large(house)
    before = user.free()
    for nth in range(1, 4):
        killed = house.command("kept", "demote", "set", CUDASIM_FAIL=f"{function}:{nth}:kill")
        assert killed.returncode == -signal.SIGKILL
        assert [(one["place"], one["sealed"] > 0) for one in house.sets()] == [("", True)]
        assert user.free() == before
    user.does("attached()")
    assert user.run(INTACT)


@pytest.mark.parametrize(
    "function", ["cuMemCreate", "cuMemExportToShareableHandle", "cuMemcpyHtoDAsync_v2"]
)
def test_a_promotion_that_is_killed(house: House, function: str) -> None:
    user = large(house)
    before = user.free()
    house.move("demote", "set")
    for nth in range(1, 4):
        killed = house.command("kept", "promote", "set", CUDASIM_FAIL=f"{function}:{nth}:kill")
        assert killed.returncode == -signal.SIGKILL
        assert [(one["place"], one["sealed"] > 0) for one in house.sets()] == [("host", True)]
        until(lambda: user.free() == before + 12 * MiB)
    user.does("attached()")
    assert user.run(INTACT)


@pytest.mark.thorough
def test_moves_that_are_killed_at_any_time(house: House) -> None:
    user = large(house)
    before = user.free()
    for delay in range(30):
        place = house.sets()[0]["place"]
        words = ["promote"] if place else ["demote", "--to", "host" if delay % 2 else "disk"]
        moving = house.start("kept", *words, "set")
        time.sleep(delay / 300)
        moving.kill()
        moving.communicate()
        until(lambda: [one["sealed"] > 0 for one in house.sets()] == [True])
        free = before + 12 * MiB if house.sets()[0]["place"] else before
        until(lambda free=free: user.free() == free)
    user.does("attached()")
    assert user.run(INTACT)


def test_a_device_without_room_for_a_set(house: House) -> None:
    user = large(house)
    house.move("demote", "set")
    user.does("more = [torch.filled(1, 31 << 20, dtype=torch.uint8) for _ in range(8)]")
    refused = house.command("kept", "promote", "set")
    assert refused.returncode == 1 and "has no room for 12.00 MiB" in refused.stderr
    assert "OutOfMemoryError 2" in user.run("attached()")
    assert [one["place"] for one in house.sets()] == ["host"]
    user.does("del more; attached()")
    assert user.run(INTACT)


def test_sets_over_the_budget_go_down(house: House, capfd: pytest.CaptureFixture[str]) -> None:
    """The least recently used of those that no process has open."""
    maker = house.program(TMS_KEPT_BUDGET="5M")

    def places() -> list[str]:
        return [one["place"] for one in house.sets() if not one["replaced"]]

    for name in "abc":
        maker.does(f"attached('a') if {name!r} == 'c' else None; tensors = None")
        maker.does(f"published({name!r}, {ord(name)})")
    assert places() == ["", "host", ""]
    maker.does("attached('b')")  # which needs the place of another
    assert maker.run("value()") == ord("b") and places() == ["host", "", ""]
    house.move("demote", "--until", "1M")
    assert places() == ["host", "", "host"]  # b is open
    assert house.move("demote", "--until", "1M") == ""
    house.program(TMS_KEPT_BUDGET="much").does("published('d', 1)")
    assert "TMS_KEPT_BUDGET much: give a number of bytes" in capfd.readouterr().err
