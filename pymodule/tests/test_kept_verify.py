"""A verification finds sets whose contents have changed."""

from __future__ import annotations

import json

import publishing
import pytest
from publishing import INTACT, STEPS, House, MiB, large

house = publishing.house


@pytest.mark.parametrize("place", ["", "host", "disk"])
def test_a_set_that_has_changed_is_found(house: House, place: str) -> None:
    user = large(house)
    if place:
        house.move("demote", "set", "--to", place)
    before = user.free()
    assert "12.00 MiB are as published" in house.move("verify", "set")
    assert user.free() == before and house.sets()[0]["users"] == []
    house.overwrite(1, 2 * MiB + 5, 0)
    changed = house.command("kept", "verify", "set")
    assert changed.returncode == 1 and not changed.stdout
    assert "its contents have changed: 2.00 MiB are not as published, in 1; drop" in changed.stderr
    house.move("promote", "set")
    changed = house.command("kept", "verify", "--json", "set", "other")
    assert changed.returncode == 1
    one, other = json.loads(changed.stdout)
    part = {"chunk": 1, "offset": 2 * MiB, "bytes": 2 * MiB, "tensors": ["1"]}
    assert one["changes"] == [part] and one["bytes"] == 12 * MiB and "changed" in one["error"]
    assert other["changes"] == [] and "no complete set" in other["error"]
    careful = house.program(TMS_VERIFY="1")
    assert "ContentsError 401" in careful.run("attached()")
    assert house.sets()[0]["users"] == []
    user.does("attached()")
    house.overwrite(1, 2 * MiB + 5, 6)
    careful.does("attached()")
    assert careful.run(INTACT)
    house.kill_keeper()
    assert "12.00 MiB are as published" in house.move("verify", "set")
    assert json.loads(house.move("verify", "set", "--json"))[0]["error"] == ""


def test_a_set_of_c_programs_is_verified(house: House) -> None:
    maker, careful = house.program(), house.program(TMS_VERIFY="1")
    for program in (maker, careful):
        program.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
    for step in STEPS:
        maker.does(step)
    maker.run("tms.pause()")  # which takes the mappings away, not the contents
    maker.does("raw('tms_kept_seal', handle, b'not JSON', 8)")
    assert "6.00 MiB are as published" in house.move("verify", "set")
    careful.does("raw('tms_kept_open', ctypes.byref(handle), b'set')")
    careful.does("raw('tms_kept_attach', handle); raw('tms_kept_close', handle)")
    house.overwrite(1, 0, 0)
    careful.does("raw('tms_kept_open', ctypes.byref(handle), b'set')")
    answer = careful.run("raw('tms_kept_attach', handle)")
    assert "401" in answer and "2.00 MiB are not as published, in chunk 1 at byte 0" in answer
    maker.run("tms.resume()")


def test_a_driver_that_cannot_hash(house: House) -> None:
    maker = house.program(CUDASIM_FAIL="cuLibraryLoadData:1:801,cuLibraryLoadData:2:801")
    maker.does("published('set', 3); attached()")
    assert maker.run("value()") == 3
    unknown = house.command("kept", "verify", "set")
    assert unknown.returncode == 1 and "published without hashes" in unknown.stderr
    assert "published without hashes" in house.program(TMS_VERIFY="1").run("attached()")
