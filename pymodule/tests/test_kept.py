"""Sets of tensors that no process owns: programs publish and attach them, and are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import children
import publishing
import pytest
from publishing import OVERWRITE, REACH, STEPS, House, MiB, stop, until
from simulator import DEVICE_MEMORY, HANGS

house = publishing.house


def test_a_set_outlives_its_maker(house: House) -> None:
    maker = house.program()
    maker.does("made = module(5)")
    maker.does("with tms.kept('set') as k: assert not k.complete; k.publish(made)")
    assert "CUDA error 1" in maker.run(OVERWRITE.format("made._parameters['tied']"))
    maker.kill()
    user = house.program()
    before = user.free()
    user.does("fresh = module(0); weight = fresh._parameters['tied']")
    user.does("attached(module=fresh)")
    assert user.run("sorted(tensors)") == ["layer.scale", "layer.weight", "tied"]
    assert user.run("weight.bytes() == bytes([5]) * 64 * 1024 * 4 and not weight.requires_grad")
    assert user.run("fresh._modules['layer']._buffers['scale'].bytes().hex()") == "06" * 6
    assert user.run("fresh._parameters['tied'] is weight and list(weight.shape)") == [64, 1024]
    assert user.run("tensors['tied'].data_ptr() == tensors['layer.weight'].data_ptr()")
    assert "CUDA error 1" in user.run(OVERWRITE.format("weight"))
    [one] = house.sets()
    assert one["name"] == "set" and one["tensors"] == 3 and one["users"] == [user.process.pid]
    assert one["bytes"] == 2 * MiB and one["sealed"] and one["device"][:4] == "GPU-"
    user.does("del fresh, weight, tensors")
    until(lambda: house.sets()[0]["users"] == [])
    assert "set: dropped, 2.00 MiB freed" in house.command("kept", "drop", "set").stdout
    assert house.sets() == [] and user.free() == before + 2 * MiB


def test_copies_are_private(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 3)")
    user.does("attached(copy=True)")
    until(lambda: house.sets()[0]["users"] == [])
    user.does("cuda.write(tensors['a'].data_ptr(), bytes([9]))")
    assert user.run("value()") == 9
    maker.does("attached()")
    assert maker.run("value()") == 3


def test_views_keep_their_memory_in_common(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("base = torch.filled(1, 4, 256); part = base.as_strided((256,), (1,))")
    maker.does("part._offset = 256")
    maker.does("turned = base.as_strided((256, 4), (1, 256)); nothing = torch.empty(0)")
    maker.does("cuda.write(part.data_ptr(), bytes([7]) * 1024)")
    maker.does(
        "with tms.kept('set') as k: "
        "k.publish({'base': base, 'part': part, 'turned': turned, 'nothing': nothing})"
    )
    user.does("attached()")
    offsets = "[tensor.data_ptr() - tensors['base'].data_ptr() for tensor in tensors.values()]"
    assert user.run(offsets)[:3] == [0, 1024, 0]
    assert user.run("list(tensors['turned'].stride())") == [1, 256]
    assert user.run("tensors['part'].bytes() == bytes([7]) * 1024")
    assert user.run("tensors['base'].bytes()[:1024] == bytes([1]) * 1024")
    assert user.run("list(tensors['nothing'].shape)") == [0]


def test_large_sets_have_several_chunks(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("from tms import _kept; _kept._CHUNK = 5 * MiB".replace("MiB", str(MiB)))
    maker.does(
        "with tms.kept('set') as k: k.publish({str(i): torch.filled(i, size, dtype=torch.uint8) "
        "for i, size in enumerate((2 << 20, 3 << 20, 9 << 20, 1000, 1))})"
    )
    assert [chunk["bytes"] for chunk in house.sets()[0]["chunks"]] == [6 * MiB, 10 * MiB, 2 * MiB]
    user.does("attached()")
    assert user.run("[set(tensors[str(i)].bytes()) == {i} for i in range(5)]") == [True] * 5
    assert user.run("[tensors[str(i)].data_ptr() % 512 for i in range(5)]") == [0] * 5


def test_a_pause_unmaps_and_a_resume_maps(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 3)")
    user.does("with tms.region('weights'): attached()")
    tag = "[t for d in tms.stats()['devices'] for t in d['tags'] if t['tag'] == 'weights'][0]"
    assert user.run(tag + "['imported_bytes']") == 2 * MiB
    for _ in range(3):
        user.run("tms.pause('weights')")
        assert user.run(tag + "['imported_paused_bytes']") == 2 * MiB
        user.run("tms.resume()")
        assert user.run("value()") == 3
        assert "CUDA error 1" in user.run(OVERWRITE.format("tensors['a']"))


def test_everything_of_a_user_is_paused(house: House) -> None:
    """The driver's checkpoint loses a process that has such memory mapped."""
    maker, user = house.program(), house.program()
    maker.does("published('set', 3)")
    user.does("attached()")
    for _ in range(2):
        assert user.run("tms.pause(everything=True)") == 0
        assert "everything of this process is paused" in user.run("attached()")
        user.run("tms.resume()")
        assert user.run("value()") == 3
    maker.does("handle = ctypes.c_void_p(); address = ctypes.c_void_p()")
    maker.does("raw('tms_kept_create', ctypes.byref(handle), b'second', -1)")
    maker.does("raw('tms_kept_add', handle, 1, ctypes.byref(address))")
    assert maker.run("tms.pause(everything=True)") == 0
    maker.run("tms.resume()")
    maker.does("cuda.write(address.value, b'a'); raw('tms_kept_seal', handle, b'', 0)")


def test_a_thread_attaches_while_everything_is_paused(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 3)")
    user.does("import threading; stop = threading.Event(); count = [0, 0]")
    user.does(
        "def attaching():\n"
        "    while not stop.is_set():\n"
        "        try:\n"
        "            attached()\n"
        "            count[0] += 1\n"
        "        except tms.NotSupportedError as error:\n"
        "            assert 'everything of this process is paused' in str(error), error\n"
        "            count[1] += 1"
    )
    user.does("thread = threading.Thread(target=attaching); thread.start()")
    for _ in range(20):
        user.run("tms.pause(everything=True)")
        user.run("tms.resume()")
    user.does("stop.set(); thread.join(); attached()")
    assert user.run("count[0]") > 0 and user.run("value()") == 3


def test_programs_of_tms_run_are_paused_from_outside(house: House) -> None:
    maker, user = house.program(LD_PRELOAD=REACH), house.program(LD_PRELOAD=REACH)
    maker.does("published('set', 3)")
    for program in (maker, user):
        program.does("attached()")
        pid = str(program.process.pid)
        for arguments in (["pause", pid], ["pause", pid, "--everything"]):
            paused = house.command(*arguments)
            assert paused.returncode == 0, paused.stderr
            resumed = house.command("resume", pid)
            assert resumed.returncode == 0, resumed.stderr
            assert program.run("value()") == 3
    house.kill_keeper()
    assert [one["users"] for one in house.sets()] == [sorted([maker.process.pid, user.process.pid])]
    assert house.command("pause", str(user.process.pid), "--everything").returncode == 0
    maker.kill()
    house.kill_keeper()
    assert [one["users"] for one in house.sets()] == [[user.process.pid]]
    assert house.command("resume", str(user.process.pid)).returncode == 0
    assert user.run("value()") == 3


def test_the_command_counts_memory_of_sets(house: House) -> None:
    """A program may have no pausable memory but that, and waits at the gate for it."""
    maker, user = house.program(), house.program(LD_PRELOAD=REACH)
    maker.does("published('set', 3)")
    user.does("attached()")
    pid = str(user.process.pid)

    def state() -> str:
        return house.command("ps", pid).stdout.splitlines()[1].split("default")[1].split()[2]

    def says(*arguments: str) -> str:
        done = house.command(*arguments, pid)
        assert done.returncode == 0, done.stderr
        return done.stdout.removeprefix(f"{pid}: ").rstrip("\n")

    of_sets = "2.00 MiB of sets and other processes"
    assert says("resume") == says("resume", "--dry-run") == "nothing to resume"
    for _ in range(2):
        assert says("pause", "--dry-run") == f"would unmap {of_sets}"
        assert state() == "active"
        assert says("pause").startswith(f"paused, {of_sets} unmapped in ")
        assert says("pause") == says("pause", "--dry-run") == "nothing to pause"
        assert state() == "paused"
        assert says("resume", "--dry-run") == f"would map {of_sets}"
        assert says("resume").startswith(f"resumed, {of_sets} mapped in ")
    assert state() == "active" and user.run("value()") == 3


@pytest.mark.parametrize("killed", [True, False])
def test_what_is_not_complete_goes_with_its_maker(house: House, killed: bool) -> None:
    user = house.program()
    user.does("published('other', 1)")
    before = user.free()
    for steps in range(2, len(STEPS) + 1):
        maker = house.program()
        maker.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
        for step in STEPS[:steps]:
            maker.does(step)
        assert "500: " in user.run("tms.kept('set').attach()")
        assert [one["sealed"] > 0 for one in house.sets()] == [True, False]
        if killed:
            maker.kill()
        else:
            maker.does("raw('tms_kept_close', handle)")
        until(lambda: len(house.sets()) == 1)
        until(lambda: user.free() == before)


def test_two_threads_close_one_handle(house: House) -> None:
    user = house.program()
    user.does("published('set', 3); import threading; stays = ctypes.c_void_p()")
    user.does("raw('tms_kept_open', ctypes.byref(stays), b'set')")
    user.does(
        "def closed():\n"
        "    handle, codes = ctypes.c_void_p(), []\n"
        "    raw('tms_kept_open', ctypes.byref(handle), b'set')\n"
        "    raw('tms_kept_attach', handle)\n"
        "    close = lambda: codes.append(load().c.tms_kept_close(handle))\n"
        "    threads = [threading.Thread(target=close) for _ in range(4)]\n"
        "    [thread.start() for thread in threads], [thread.join() for thread in threads]\n"
        "    return sorted(codes)"
    )
    for _ in range(50):
        assert user.run("closed()") == [0, 1, 1, 1]
    assert house.sets()[0]["users"] == [user.process.pid]
    user.does("raw('tms_kept_attach', stays)")


def test_a_snapshot_of_an_unfinished_set_is_refused(house: House, tmp_path: Path) -> None:
    """It is no other process's yet, and would be gone in a restore."""
    criu = tmp_path / "criu"
    criu.write_text("#!/bin/sh\necho Version: 99.0\n")
    criu.chmod(0o700)
    # A session from outside of its PID namespace, as in some containers, is refused for that.
    maker = house.program("setsid")
    maker.does("published('set', 7); attached()")
    maker.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
    maker.does("raw('tms_kept_create', ctypes.byref(handle), b'next', -1)")
    maker.does("raw('tms_kept_add', handle, 1, ctypes.byref(address))")
    done = house.command(
        "snapshot",
        str(maker.process.pid),
        str(tmp_path / "snapshots"),
        "--force",
        TMS_CRIU=str(criu),
    )
    assert done.returncode != 0
    assert 'the program is writing the set "next"' in done.stderr
    assert maker.run("value()") == 7
    maker.does("raw('tms_kept_seal', handle, b'', 0)")


def test_a_snapshot_of_a_set_without_hashes_is_refused(house: House, tmp_path: Path) -> None:
    """A restore would take another set with the same tensors for it."""
    criu = tmp_path / "criu"
    criu.write_text("#!/bin/sh\necho Version: 99.0\n")
    criu.chmod(0o700)
    maker = house.program(CUDASIM_FAIL="cuLibraryLoadData:1:801,cuLibraryLoadData:2:801")
    maker.does("published('set', 3)")
    user = house.program("setsid")
    user.does("attached()")
    done = house.command(
        "snapshot",
        str(user.process.pid),
        str(tmp_path / "snapshots"),
        "--force",
        TMS_CRIU=str(criu),
    )
    assert done.returncode != 0
    assert 'the set "set" was published without hashes' in done.stderr
    assert user.run("value()") == 3


def test_a_killed_user_holds_nothing(house: House) -> None:
    maker, witness = house.program(), house.program()
    empty = witness.free()
    for step in ("k = tms.kept('set').__enter__()", "attached()", "attached(); tms.pause()"):
        maker.does("published('set', 3)")
        user = house.program()
        user.run(step)
        assert house.sets()[0]["users"] == [user.process.pid]
        house.command("kept", "drop", "set")
        assert witness.free() == empty - 2 * MiB
        user.kill()
        until(lambda: witness.free() == empty)
    assert house.sets() == []


def test_an_interrupt_leaves_no_set_open(house: House) -> None:
    """It comes when the library has opened a set, and before Python has noted that."""
    user = house.program()
    user.does("published('set', 5)")
    user.does(
        "def interrupt(*_): raise KeyboardInterrupt\n"
        "load().c.tms_kept_open.errcheck = interrupt\n"
        "try: attached()\n"
        "except KeyboardInterrupt: pass"
    )
    until(lambda: house.sets()[0]["users"] == [])
    user.does("del load().c.tms_kept_open.errcheck")
    user.does("attached()")
    assert user.run("value()") == 5


def test_the_last_to_publish_a_name_has_it(house: House) -> None:
    first, second, user = house.program(), house.program(), house.program()
    for maker in (first, second):
        maker.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
        for step in STEPS[:2]:
            maker.does(step)
    before = user.free()
    first.does("published('set', 1)")
    user.does("attached()")
    second.does("published('set', 2)")
    assert user.run("value()") == 1
    user.run("tms.pause()")
    assert [one["replaced"] for one in house.sets() if one["users"] == [user.process.pid]] == [True]
    user.run("tms.resume()")
    assert user.run("value()") == 1
    user.does("attached()")
    assert user.run("value()") == 2
    until(lambda: user.free() == before - 2 * MiB)
    user.does("del tensors")
    second.does("raw('tms_kept_seal', handle, b'{\"format\": 7}', 13)")
    assert "The set 'set' has format 7" in user.run("attached()")
    assert "set: dropped" in house.command("kept", "drop", "set").stdout
    gone = house.command("kept", "drop", "set")
    assert gone.returncode == 1 and "there is no complete set of that name" in gone.stderr


def test_a_killed_keeper_is_followed_by_another(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 4); published('lost', 5); published('paused', 6)")
    maker.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
    for step in STEPS:
        maker.does(step)
    for program in (maker, user):
        program.does("attached('paused'); other = tensors; attached()")
    user.run("tms.pause()")
    house.kill_keeper()
    user.run("tms.resume()")
    assert user.run("[value(), other['a'].bytes()[0]]") == [4, 6]
    assert sorted(one["name"] for one in house.sets()) == ["paused", "set"]
    assert all(len(one["users"]) == 2 for one in house.sets())
    assert "publish it again" in maker.run("raw('tms_kept_seal', handle, b'', 0)")
    maker.kill()
    user.does("del tensors, other")
    third = house.program()
    third.does("attached()")
    assert third.run("value()") == 4
    third.run("tms.pause()")
    house.kill_keeper()  # and everybody has paused it
    assert [one["name"] for one in house.sets()] == ["set"]
    third.run("tms.resume()")
    assert third.run("value()") == 4
    third.does("del tensors; opened = tms.kept('set').__enter__()")
    house.kill_keeper()  # while no process has attached the set
    assert house.sets() == []
    assert "lost" in third.run("opened.attach()")
    assert "lost" in third.run("tms.kept('set').attach()")


def test_a_user_that_a_new_keeper_did_not_hear(house: House) -> None:
    user, other = house.program(), house.program()
    user.does("published('set', 3); attached()")
    user.run("tms.pause()")
    house.kill_keeper()
    stop(user.process.pid)
    try:
        assert house.sets() == []
    finally:
        os.kill(user.process.pid, signal.SIGCONT)
    user.run("tms.resume()")
    assert user.run("value()") == 3
    assert "no complete set" in other.run("tms.kept('set').attach()")


def test_a_set_without_its_name_stays_so_under_the_next_keeper(house: House) -> None:
    engine, trainer, late = house.program(), house.program(), house.program()
    trainer.does("published('set', 1); published('dropped', 7)")
    engine.does("attached('dropped'); other = tensors; attached()")
    assert "dropped" in house.command("kept", "drop", "dropped").stdout
    trainer.does("published('set', 2)")
    house.kill_keeper()
    assert [one["replaced"] for one in house.sets()] == [True, True]
    for name in ("set", "dropped"):
        assert "no complete set" in late.run(f"tms.kept({name!r}).attach()")
    trainer.does("published('set', 3)")
    late.does("attached()")
    house.kill_keeper()  # which learns of both
    trainer.does("attached()")
    assert [trainer.run("value()"), engine.run("value()")] == [3, 1]
    engine.does("del tensors, other")
    until(lambda: len(house.sets()) == 1)


def test_a_keeper_that_was_stopped_counts_no_user_that_gave_up(house: House) -> None:
    maker, user = house.program(), house.program()
    maker.does("published('set', 3)")
    stop(house.keeper())
    assert "does not answer" in user.run("tms.kept('set').__enter__().complete")
    os.kill(house.keeper(), signal.SIGCONT)
    until(lambda: house.sets()[0]["users"] == [])


def test_a_keeper_whose_directory_is_removed(house: House) -> None:
    """The next command finds it, with what it has, and starts no other."""
    maker = house.program()
    maker.does("published('set', 3)")
    maker.kill()
    keeper = house.keeper()
    shutil.rmtree(house.place / "tms")
    assert [one["name"] for one in house.sets()] == ["set"]
    assert house.keeper() == keeper


def test_a_second_keeper_waits_for_its_turn(house: House) -> None:
    user = house.program()
    user.does("published('set', 3); attached()")
    first = house.keeper()
    second = house.start("keeper")
    assert second.stderr is not None and "takes over when that ends" in second.stderr.readline()
    house.kill_keeper()
    until(lambda: house.keeper() not in (0, first))
    assert house.keeper() == second.pid
    assert [one["users"] for one in house.sets()] == [[user.process.pid]]
    second.terminate()
    assert second.wait(HANGS) == 0


def test_a_program_that_closes_its_descriptors(house: House) -> None:
    user, other = house.program(), house.program()
    user.does("published('set', 3); attached()")
    user.does("os.closerange(3, 1000); files = [os.pipe() for _ in range(100)]")
    house.kill_keeper()
    other.does("attached()")
    assert other.run("value()") == 3
    user.kill()
    house.kill_keeper()
    assert [one["users"] for one in house.sets()] == [[other.process.pid]]
    assert other.run("len(attached('set') or tensors)") == 1
    before = other.free()
    house.command("kept", "drop", "set")
    other.does("del tensors")
    until(lambda: other.free() == before + 2 * MiB)


@pytest.mark.thorough
def test_two_hundred_cycles_leave_nothing(house: House) -> None:
    user = house.program()
    user.does("published('set', 1); attached()")
    before = user.free()
    user.does("for i in range(200): published('set', i % 250); attached(copy=i % 2 == 0)")
    user.does("attached()")
    assert user.run("value()") == 199
    until(lambda: user.free() == before)
    house.command("kept", "drop", "set")
    user.does("del tensors")
    until(lambda: user.free() == before + 2 * MiB)
    assert DEVICE_MEMORY - user.free() == 0
    keeper = house.keeper()
    until(lambda: len(os.listdir(f"/proc/{keeper}/fd")) < 20)


def test_what_cannot_be_published_or_attached(house: House) -> None:
    user = house.program()
    for code, words in {
        "k.publish({})": "no tensor to publish",
        "k.publish({'a': 5})": "'a' is no tensor",
        "k.publish({'a': torch.empty(1, device='cpu')})": "'a' is on cpu:0",
        "tms.kept('x' * 256)": "1 to 255 bytes",
        "tms.kept('')": "1 to 255 bytes",
        "tms.kept('a\\0b')": "must not contain a NUL",
        "k.attach()": "there is no complete set of that name (cudaError 500). Publish it first",
        "k.publish({'a': torch.empty(40 << 20)})": "OutOfMemoryError 2: publishing the set 'set'",
    }.items():
        user.does("k = tms.kept('set')")
        assert words in user.run(code), code
    user.does("with tms.kept('set') as k: k.publish(module(1))")
    user.does("other = module(2, unlike=1); pointer = other._parameters['tied'].data_ptr()")
    refused = user.run("attached(module=other)")
    assert "tied is torch.float32 (65, 1024) in the module" in refused
    assert user.run("other._parameters['tied'].data_ptr() == pointer")
    user.does("other = module(2); other._buffers['extra'] = torch.empty(1)")
    assert "extra is not in the set" in user.run("attached(module=other)")
    user.does("other.unsaved.add('extra'); attached(module=other)")
    user.does("other = module(2); del other._parameters['tied']")
    assert "the module has no tied" in user.run("attached(module=other)")


def test_a_module_survives_a_publish_that_fails(house: House) -> None:
    maker = house.program()
    maker.does("from tms import _kept; _kept._CHUNK = 1")
    maker.does(
        "made = module(5); made._parameters['z'] = torch.nn.Parameter(torch.filled(6, 40 << 20))"
    )
    assert "OutOfMemoryError" in maker.run("tms.kept('set').publish(made)")
    assert [one["sealed"] > 0 for one in house.sets()] == [False]
    values = "[tensor.bytes()[0] for tensor in made.state_dict().values()]"
    assert maker.run(values) == [5, 6, 5, 6]
    maker.does("del made._parameters['z']; tms.kept('set').publish(made)")
    assert maker.run(values) == [5, 5, 6]
    until(lambda: [one["sealed"] > 0 for one in house.sets()] == [True])


def test_a_module_needs_room_for_one_chunk(house: House) -> None:
    maker = house.program()
    maker.does("from tms import _kept; _kept._CHUNK = 1; made = torch.nn.Module()")
    for name in "abc":
        maker.does(f"made._parameters[{name!r}] = torch.nn.Parameter(torch.filled(7, 15 << 20))")
    assert maker.free() == DEVICE_MEMORY - 180 * MiB < 2 * 60 * MiB
    maker.does("with tms.kept('set') as k: k.publish(made)")
    assert maker.free() == DEVICE_MEMORY - 180 * MiB
    assert maker.run("made._parameters['c'].bytes()[0]") == 7


def test_a_keeper_that_cannot_be_started_or_is_stopped(house: House) -> None:
    assert "/nonexistent cannot be started" in house.program(TMS_COMMAND="/nonexistent").run(
        "tms.kept('set').attach()"
    )
    user, other = house.program(), house.program()
    user.does("published('set', 3); attached()")
    keeper = house.keeper()
    user.run("tms.pause()")
    stop(keeper)
    try:
        other.tell(json.dumps("attached()"))
        user.run("tms.resume()")  # by descriptors of its own
        assert user.run("value()") == 3
        assert "the keeper does not answer" in json.loads(other.answer())
    finally:
        os.kill(keeper, signal.SIGCONT)
    assert house.keeper() == keeper


def test_a_set_lies_on_its_device(house: House) -> None:
    maker, user, blind = house.program(), house.program(), house.program(CUDASIM_DEVICES="1")
    for program in (maker, user, blind):
        program.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
    maker.does("raw('tms_kept_create', ctypes.byref(handle), b'set', 1); cuda.set_device(1)")
    assert "at least one byte" in maker.run("raw('tms_kept_add', handle, 0, ctypes.byref(address))")
    maker.does("raw('tms_kept_add', handle, 5, ctypes.byref(address))")
    maker.does("cuda.write(address.value, b'hello'); raw('tms_kept_seal', handle, b'{}', 2)")
    user.does("raw('tms_kept_open', ctypes.byref(handle), b'set'); cuda.set_device(1)")
    user.does("raw('tms_kept_attach', handle); size, device = ctypes.c_size_t(), ctypes.c_int()")
    user.does(
        "raw('tms_kept_chunk', handle, 0, ctypes.byref(address), ctypes.byref(size), "
        "ctypes.byref(device))"
    )
    assert user.run("(size.value, device.value)") == [2 * MiB, 1]
    assert user.run("cuda.read(address.value, 5) == b'hello'")
    blind.does("raw('tms_kept_open', ctypes.byref(handle), b'set')")
    assert "which this process does not see" in blind.run("raw('tms_kept_attach', handle)")
    blind.does("raw('tms_kept_close', handle)")
    assert "it was closed" in blind.run("raw('tms_kept_close', handle)")
    assert "invalid device ordinal" in maker.run(
        "raw('tms_kept_create', ctypes.byref(handle), b'other', 7)"
    )
    assert "is UTF-8" in maker.run("raw('tms_kept_create', ctypes.byref(handle), b'\\xff', 0)")


def test_another_user_is_refused(house: House) -> None:
    if not children.becomes(54321):
        pytest.skip("no process can become another user here")
    user = house.program()
    user.does("published('set', 1)")
    (house.place / "tms").chmod(0o755)
    house.place.chmod(0o755)
    sock = house.place / "tms" / "keeper.sock"
    sock.chmod(0o777)
    ask = f"""
import os, socket
os.setgid(54321); os.setuid(54321)
with socket.socket(socket.AF_UNIX) as s:
    s.connect({str(sock)!r})
    s.sendall(b'{{"version":1,"op":"open","name":"set"}}\\n')
    print(s.recvmsg(10000, 100))
"""
    answer = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert "answers no process of user 54321" in answer.stdout, answer
    assert "SCM_RIGHTS" not in answer.stdout and ", []," in answer.stdout
