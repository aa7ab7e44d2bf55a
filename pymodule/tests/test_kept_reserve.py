"""Host memory that belongs to no process: contents of pauses and demoted sets go there."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time

import publishing
import pytest
from publishing import INTACT, REACH, House, MiB, Program, large, stop, until

house = publishing.house
EXTENT = 256 * MiB
SIZE = 40 * MiB


def free(house: House) -> int:
    """How many extents are reserved and free."""
    words = house.move("reserve").split()
    assert words[2:] == ["of", "host", "memory", "are", "reserved", "and", "free"], words
    return round(float(words[0]) * {"bytes": 1, "MiB": MiB, "GiB": 1024 * MiB}[words[1]]) // EXTENT


def owner(house: House, **variables: str) -> Program:
    """A program with pausable memory that is not all alike."""
    program = house.program(**variables)
    program.does(
        f"def mine(i, size={SIZE}): return bytes([(os.getpid() + i) % 251]) * size\n"
        "def whole():\n"
        f"    return all(cuda.read(p, {SIZE}) == mine(i) for i, p in enumerate(pointers))\n"
        "with tms.region('mine', backup='host'):\n"
        f"    pointers = [cuda.malloc({SIZE}) for _ in range(3)]\n"
        "for i, pointer in enumerate(pointers):\n"
        "    cuda.write(pointer, mine(i))\n"
    )
    return program


def test_pauses_pass_it_on(house: House) -> None:
    programs = [owner(house), owner(house, LD_PRELOAD=REACH)]
    assert free(house) == 0
    assert "512.00 MiB" in house.move("reserve", "300M")
    before = programs[0].free()
    for program in programs * 2:
        pinned = program.run("cuda.calls('cuMemHostRegister')")
        program.run("tms.pause()")
        assert program.free() == before + 3 * SIZE and free(house) == 1
        assert program.run("cuda.calls('cuMemHostRegister')") == pinned
        program.run("tms.resume()")
        assert program.run("whole()")
        until(lambda: free(house) == 2)
    pid = str(programs[1].process.pid)
    for arguments in (["pause", pid], ["pause", pid, "--everything"]):
        assert house.command(*arguments).returncode == 0
        assert free(house) == 1
        assert house.command("resume", pid).returncode == 0
        assert programs[1].run("whole()")
        until(lambda: free(house) == 2)
    assert "0 bytes" in house.move("reserve", "0") and free(house) == 0


@pytest.mark.thorough
def test_what_finds_no_room_there(house: House) -> None:
    """It waits in the process's own memory."""
    program = owner(house, CUDASIM_MEMORY="1G")
    house.move("reserve", "256M")
    program.does(f"with tms.region('more', backup='host'): more = cuda.malloc({140 * MiB})")
    program.does(f"cuda.write(more, b'm' * {140 * MiB})")
    for again in range(2):
        program.run("tms.pause()")
        assert free(house) == 0
        assert program.run("cuda.calls('cuMemHostRegister')") == again + 1
        program.run("tms.resume()")
        assert program.run("whole()")
        assert program.run(f"cuda.read(more, {140 * MiB}) == b'm' * {140 * MiB}")
        until(lambda: free(house) == 1)


def test_a_pointer_to_contents(house: House) -> None:
    """Reserved memory has no address in the process, so the tag's contents move to its own."""
    program = owner(house)
    house.move("reserve", "256M")
    program.does(
        "find = load().c.tms_get_cpu_backup_pointer\n"
        "find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64]\n"
    )
    assert program.run(f"find(pointers[1], {SIZE})") is None
    program.run("tms.pause()")
    assert free(house) == 0
    program.does("cuda.fail('cuMemcpyDtoDAsync_v2', 1, 2)")
    assert program.run(f"find(pointers[1], {SIZE})") is None and free(house) == 0
    assert program.run(f"ctypes.string_at(find(pointers[1], {SIZE}), {SIZE}) == mine(1)")
    assert program.run("ctypes.string_at(find(pointers[2], 1), 5) == mine(2, 5)")
    until(lambda: free(house) == 1)
    program.run("tms.resume()")
    assert program.run("whole()")


def test_a_pointer_while_everything_is_paused(house: House) -> None:
    """Calls of the driver would wait for the resume, and so would the program."""
    program = owner(house)
    house.move("reserve", "256M")
    program.does(
        "find = load().c.tms_get_cpu_backup_pointer\n"
        "find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_uint64]\n"
    )
    program.run("tms.pause(everything=True)")
    assert program.run("find(pointers[1], 1)") is None
    assert "is in reserved host memory" in program.run("load().last_error")
    program.run("tms.resume()")
    assert program.run("whole()")


def test_a_process_without_contents(house: House) -> None:
    """It takes nothing, and does not listen for that."""
    program = owner(house)
    house.move("reserve", "256M")
    program.does("for pointer in pointers: cuda.free(pointer)\npointers = []")
    program.does("with tms.region('none'): cuda.malloc(1 << 20)")
    program.run("tms.pause()")
    assert free(house) == 1
    assert house.command("ps", str(program.process.pid)).returncode != 0


@pytest.mark.thorough
def test_copies_that_are_to_stay(house: House) -> None:
    """Retained and incremental copies are the process's own."""
    program = owner(house, TMS_RETAIN_CPU_BACKUP="1")
    house.move("reserve", "256M")
    program.run("tms.pause()")
    assert free(house) == 1
    program.run("tms.resume()")
    assert program.run("whole()")


def test_a_process_that_is_killed(house: House) -> None:
    """Only its extents go to the system, since its device may still write them."""
    dies, lives = owner(house), owner(house)
    house.move("reserve", "768M")
    dies.run("tms.pause()")
    lives.run("tms.pause()")
    assert free(house) == 1
    dies.kill()
    lives.run("tms.resume()")
    until(lambda: free(house) == 2)
    assert lives.run("whole()")
    assert "768.00 MiB" in house.move("reserve", "768M")


@pytest.mark.thorough
def test_many_pause_at_once_and_some_are_killed(house: House) -> None:
    """No two ever have one extent: each finds its own contents."""
    programs = [owner(house, CUDASIM_MEMORY="1G") for _ in range(2)]
    house.move("reserve", "768M")
    for cycle in range(12):
        programs.append(owner(house))
        for program in programs:
            program.tell(json.dumps("[tms.pause(), tms.resume(), whole()][2]"))
        time.sleep(cycle / 300)
        programs.pop(0).kill()
        for program in programs:
            assert json.loads(program.answer()) is True
    until(lambda: free(house) <= 3)
    house.move("reserve", "768M")
    for program in programs:
        program.run("tms.pause()")
    assert free(house) == 1
    for program in programs:
        program.run("tms.resume()")
        assert program.run("whole()")
    until(lambda: free(house) == 3)


@pytest.mark.parametrize("stopped", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_without_a_keeper(house: House, stopped: bool) -> None:
    """A pause and a resume need none, nor do they wait for one that is stopped."""
    program = owner(house)
    house.move("reserve", "512M")
    program.run("tms.pause()")
    keeper = house.keeper()
    stop(keeper) if stopped else house.kill_keeper()
    for _ in range(2):
        program.run("tms.resume()")
        assert program.run("whole()")
        program.run("tms.pause()")
    assert program.run("cuda.calls('cuMemHostRegister')") > 0
    if stopped:
        os.kill(keeper, signal.SIGCONT)
        until(lambda: free(house) == 2)
    else:
        assert house.keeper() == 0
    program.run("tms.resume()")
    assert program.run("whole()")


def test_a_keeper_that_is_slow_gets_all_back(house: House) -> None:
    program = owner(house)
    house.move("reserve", "512M")
    program.run("tms.pause()")
    assert free(house) == 1
    keeper = house.keeper()
    stop(keeper)
    try:
        program.run("tms.resume()")
        assert program.run("whole()")
        program.run("tms.pause()")  # it does not answer: contents go elsewhere
        program.run("tms.resume()")
        assert program.run("whole()")
    finally:
        os.kill(keeper, signal.SIGCONT)
    until(lambda: free(house) == 2)


FULL = """
import resource
held, limits = [], resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
try:
    while True: held.append(os.open('/dev/null', 0))
except OSError: pass
"""
ROOM = "resource.setrlimit(resource.RLIMIT_NOFILE, limits)\nfor one in held: os.close(one)"


def test_contents_need_no_directory_and_no_free_descriptor(house: House) -> None:
    """A process keeps its own; reserved memory goes back once the keeper can be reached."""
    program = owner(house)
    program.does("published('set', 3); attached()")
    house.move("reserve", "512M")
    sockets = house.place / "tms"
    keeper = house.keeper()
    for harm in ("chmod", "stop", "remove"):
        program.run("tms.pause()")
        assert free(house) == 1
        if harm == "chmod":
            sockets.chmod(0o755)
        elif harm == "stop":
            stop(keeper)
        else:
            shutil.rmtree(sockets)
        program.does(FULL)
        assert isinstance(program.run("tms.resume()"), int), harm
        assert program.run("whole() and value() == 3")
        if harm == "stop":
            os.kill(keeper, signal.SIGCONT)
        elif harm == "chmod":
            sockets.chmod(0o700)
        until(lambda: house.keeper() == keeper)
        until(lambda: free(house) == 2)
        program.does(ROOM)


def test_the_gpu_is_named_as_nvidia_smi_does(house: House) -> None:
    variables = {"CUDASIM_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0"}
    done = house.command("kept", "reserve", "--device", "1", **variables)
    assert done.returncode == 0, done.stderr
    done = house.command("kept", "reserve", "--device", "2", **variables)
    assert done.returncode != 0
    assert "invalid device ordinal" in done.stderr


@pytest.mark.thorough
def test_two_reserve_at_once(house: House) -> None:
    house.command("kept")
    both = [house.start("kept", "reserve", "1G") for _ in range(2)]
    for one in both:
        assert "1.00 GiB" in one.communicate()[0]
    assert free(house) == 4


@pytest.mark.thorough
def test_calls_that_fail(house: House) -> None:
    """What the driver refuses, the pause or resume undoes or reports, and nothing is lost."""
    program = owner(house)
    house.move("reserve", "512M")
    for function in (
        "cuMemImportFromShareableHandle",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemcpyDtoDAsync_v2",
    ):
        for step in ("pause", "resume"):
            program.does(f"cuda.fail({function!r}, 1, 2)")
            refused = str(program.run(f"tms.{step}()"))
            program.does("cuda.forget_failures()")
            if "Error" in refused:
                assert isinstance(program.run(f"tms.{step}()"), int)
        assert program.run("whole()"), function
        until(lambda: free(house) == 2)


def test_sets_go_there_and_come_back(house: House) -> None:
    user = large(house)
    before = user.free()
    house.move("reserve", "4G")
    for place in ("host", "disk", "host"):
        house.move("demote", "set", "--to", place)
        [one] = house.sets()
        assert one["bytes"] == 12 * MiB and user.free() == before + 12 * MiB
        used = 16 - free(house)
        assert used == (len(one["chunks"]) if place == "host" else 0)
        assert "12.00 MiB are as published" in house.move("verify", "set")
        house.move("promote", "set")
        until(lambda: free(house) == 16)
    user.does("attached()")
    assert user.run(INTACT)
    user.does("del tensors")
    house.move("demote", "set")
    house.move("demote", "set", "--to", "disk")
    until(lambda: free(house) == 16)
    house.move("promote", "set")
    house.move("reserve", "256M")  # too little for all chunks
    house.move("demote", "set")
    assert free(house) == 1
    house.move("drop", "set")
    assert user.free() == before + 12 * MiB


@pytest.mark.thorough
def test_a_chunk_in_several_extents(house: House) -> None:
    maker = house.program(CUDASIM_MEMORY="2G")
    maker.does(f"published('set', 5, {300 * MiB})")
    for reserved, used in ("256M", 0), ("768M", 2):
        house.move("reserve", reserved)
        before = free(house)
        house.move("demote", "set")
        [one] = house.sets()
        assert before - free(house) == used and one["bytes"] == 300 * MiB
        assert [len(chunk.get("more", [])) + 1 for chunk in one["chunks"]] == [max(1, used)]
        assert "300.00 MiB are as published" in house.move("verify", "set")
        maker.does("attached()")
        assert maker.run(f"tensors['a'].bytes() == bytes([5]) * {300 * MiB}")
        maker.does("del tensors")
        until(lambda before=before: free(house) == before and house.sets()[0]["users"] == [])


@pytest.mark.parametrize(
    "function",
    [
        "cuMemImportFromShareableHandle",
        pytest.param("cuMemcpyDtoDAsync_v2", marks=pytest.mark.thorough),
    ],
)
def test_moves_that_are_killed_or_fail(house: House, function: str) -> None:
    user = large(house)
    before = user.free()
    house.move("reserve", "4G")
    for words, place in ((["demote", "set"], ""), (["promote", "set"], "host")):
        for how in ("2", "kill"):
            ended = house.command("kept", *words, CUDASIM_FAIL=f"{function}:2:{how}")
            assert ended.returncode == (1 if how == "2" else -signal.SIGKILL)
            assert [one["place"] for one in house.sets()] == [place]
            until(lambda place=place: user.free() == before + (12 * MiB if place else 0))
            if how == "2" and not place:
                assert free(house) == 16
        house.move("reserve", "4G")
        house.move(*words)
    until(lambda: free(house) == 16 + len(house.sets()[0]["chunks"]))
    user.does("attached()")
    assert user.run(INTACT)


def test_words_that_are_wrong(house: House) -> None:
    for arguments in (["much"], ["-1G"], ["1G", "2G"], ["1G", "--device", "-1"]):
        refused = house.command("kept", "reserve", *arguments)
        assert refused.returncode != 0 and refused.stderr, arguments
    refused = house.command("kept", "reserve", "900T")
    assert refused.returncode == 2 and "available" in refused.stderr
    assert json.loads(house.move("--json")) == []
