"""Sets of tensors that no process owns: programs publish and attach them, and are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from following import OBEY, Follower
from simulator import BUILD, DEVICE_MEMORY, HANGS, PYMODULE, environment

TESTS = Path(__file__).resolve().parent
MiB = 1 << 20
OVERWRITE = "{0}.as_strided((1,), (1,)).copy_({0}.as_strided((1,), (1,)))"

PROGRAM = (
    """
import ctypes, json, os, sys
import cuda, torch, tms
from tms._library import load
def raw(function, *arguments):
    code = getattr(load().c, function)(*arguments)
    if code:
        raise tms.TmsError(load().last_error, code=code)
def module(value=None, unlike=0):
    layer, top = torch.nn.Module(), torch.nn.Module()
    weight = torch.nn.Parameter(torch.filled(value or 0, 64 + unlike, 1024))
    layer._parameters["weight"] = weight
    layer._buffers["scale"] = torch.filled((value or 0) + 1, 3, dtype=torch.bfloat16)
    top._parameters["tied"] = weight
    top._modules["layer"] = layer
    return top
def attached(name="set", module=None, copy=False):
    global tensors
    with tms.kept(name) as k:
        assert k.complete
        tensors = k.attach(module, copy=copy)
def published(name, value, size=MiB):
    with tms.kept(name) as k:
        k.publish({"a": torch.filled(value, size, dtype=torch.uint8)})
def value(of="a"):
    return tensors[of].bytes()[0]
""".replace("MiB", str(MiB))
    + OBEY
)


REACH = f"{BUILD / 'lib' / 'libtms.so'}:{BUILD / 'lib' / 'libtms_reach.so'}"
"""What `tms run` preloads."""


class Program(Follower):
    """A program on a simulated device that it shares with the others."""

    def __init__(self, place: Path, name: str, *wrapper: str, **variables: str) -> None:
        super().__init__(
            [*wrapper, sys.executable, "-c", PROGRAM],
            env={
                **environment(),
                "PYTHONPATH": f"{PYMODULE}:{TESTS}:{TESTS / 'kept'}",
                "XDG_RUNTIME_DIR": str(place),
                "TMPDIR": str(place),
                "CUDASIM_SHARED": name,
                "TMS_DEBUG": "invariants",
                **variables,
            },
        )

    def run(self, code: str) -> Any:
        """The value of an expression, or the text of its error."""
        return json.loads(self.ask(json.dumps(code)))

    def does(self, code: str) -> None:
        assert self.run(code) is None

    def free(self) -> int:
        return int(self.run("cuda.free_memory()"))


class House:
    """Programs, and the keeper that they have started."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._name = f"kept-{os.getpid()}-{place.name}"[-60:]
        self._programs: list[Follower] = []

    def program(self, *wrapper: str, **variables: str) -> Program:
        made = Program(self.place, self._name, *wrapper, **variables)
        self._programs.append(made)
        return made

    def follower(self, *command: str | Path) -> Follower:
        """A program of any kind, on the same devices."""
        self._programs.append(Follower(command, env=self.environment()))
        return self._programs[-1]

    def keeper(self) -> int:
        """Its process; 0: there is none."""
        with socket.socket(socket.AF_UNIX) as asked:
            try:
                asked.connect(str(self.place / "tms" / "keeper.sock"))
            except OSError:
                return 0
            peer = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return int(struct.unpack("3i", peer)[0])

    def kill_keeper(self) -> None:
        pid = self.keeper()
        assert pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.keeper() == 0)

    def environment(self) -> dict[str, str]:
        return {
            **environment(),
            "LD_PRELOAD": "",
            "XDG_RUNTIME_DIR": str(self.place),
            "TMPDIR": str(self.place),
            "CUDASIM_SHARED": self._name,
        }

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """The command tms, on the devices of the programs."""
        return subprocess.Popen(
            [BUILD / "bin" / "tms", *arguments],
            env={**self.environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def command(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as started:
            out, err = started.communicate(timeout=HANGS)
            return subprocess.CompletedProcess(arguments, started.returncode, out, err)

    def overwrite(self, chunk: int, offset: int, value: int) -> None:
        """Changes a byte of a set behind everybody's back."""
        ask = {"version": 1, "op": "lend", "share": self.sets()[0]["chunks"][chunk]["id"]}
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(self.place / "tms" / "keeper.sock"))
            asked.sendall(json.dumps(ask).encode() + b"\n")
            [descriptor] = socket.recv_fds(asked, 4096, 1)[1]
        assert os.pwrite(descriptor, bytes([value]), offset) == 1
        os.close(descriptor)

    def move(self, *arguments: str, **variables: str) -> str:
        done = self.command("kept", *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def sets(self) -> Any:
        result = self.command("kept", "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def end(self) -> None:
        for program in self._programs:
            program.kill()
        if pid := self.keeper():
            os.kill(pid, signal.SIGKILL)


def until(condition: Callable[[], bool]) -> None:
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < HANGS
        time.sleep(0.01)


@pytest.fixture
def house() -> Iterator[House]:
    place = Path(tempfile.mkdtemp(prefix="tms-test-", dir="/tmp"))  # short, for paths of sockets
    made = House(place)
    yield made
    made.end()
    shutil.rmtree(place)


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


STEPS = [
    "raw('tms_kept_create', ctypes.byref(handle), b'set', -1)",
    "raw('tms_kept_add', handle, 3 << 20, ctypes.byref(address))",
    "raw('tms_kept_add', handle, 1, ctypes.byref(address))",
    "cuda.write(address.value, b'contents')",
]


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
    house.kill_keeper()  # and nobody has attached it
    assert house.sets() == []
    assert "lost" in third.run("opened.attach()")
    assert "lost" in third.run("tms.kept('set').attach()")


def test_a_user_that_a_new_keeper_did_not_hear(house: House) -> None:
    user, other = house.program(), house.program()
    user.does("published('set', 3); attached()")
    user.run("tms.pause()")
    house.kill_keeper()
    os.kill(user.process.pid, signal.SIGSTOP)
    try:
        assert house.sets() == []
    finally:
        os.kill(user.process.pid, signal.SIGCONT)
    user.run("tms.resume()")
    assert user.run("value()") == 3
    assert "no complete set" in other.run("tms.kept('set').attach()")


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
        "tms.kept('a\\0b')": "1 to 255 bytes",
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
    user = house.program()
    user.does("published('set', 3); attached()")
    keeper = house.keeper()
    user.run("tms.pause()")
    os.kill(keeper, signal.SIGSTOP)
    try:
        assert "the keeper does not answer" in user.run("attached()")
        assert "the keeper does not answer" in user.run("tms.resume()")
    finally:
        os.kill(keeper, signal.SIGCONT)
    user.run("tms.resume()")
    assert user.run("value()") == 3 and house.keeper() == keeper


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
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
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


def large(house: House) -> Program:
    """Publishes a set of three chunks in a program that has ended, and returns another."""
    maker = house.program()
    maker.does("from tms import _kept; _kept._CHUNK = 1")
    maker.does(
        "with tms.kept('set') as k: "
        "k.publish({str(i): torch.filled(i + 5, 3 << 20, dtype=torch.uint8) for i in range(3)})"
    )
    maker.kill()
    return house.program()


INTACT = "[set(tensors[str(i)].bytes()) == {i + 5} for i in range(3)] == [True] * 3"


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
