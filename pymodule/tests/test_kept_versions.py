"""Versions of a set: an engine follows what a trainer writes, at the same addresses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import publishing
import pytest
from publishing import OVERWRITE, REACH, STEPS, House, MiB, Program, stop, until
from simulator import HANGS

house = publishing.house

FOLLOW = """
def follow(name='set', back=False):
    global policy, tensors, at
    with tms.kept(name) as k:
        policy = k.follow(back=back)
    tensors = policy.tensors
    at = {name: tensor.data_ptr() for name, tensor in tensors.items()}
def write(value, name='set', **more):
    with tms.kept(name).next(**more) as w:
        for tensor in w.values():
            tensor.fill_(value)
def stays():
    return at == {name: tensor.data_ptr() for name, tensor in tensors.items()}
"""


def pair(house: House, back: bool = False) -> tuple[Program, Program]:
    """A trainer that has published version 1, of twos, and an engine that follows it."""
    trainer, engine = house.program(), house.program()
    for program in (trainer, engine):
        program.does(FOLLOW)
    trainer.does("published('set', 1)")
    engine.does(f"follow(back={back})")
    return trainer, engine


HOLD = """
import time
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def waits(_):
    open(place + "/begun", "w").close()
    while not os.path.exists(place + "/go"):
        time.sleep(0.01)
stream = ctypes.c_void_p()
cuda.check(cuda._runtime.cudaStreamCreate(ctypes.byref(stream)))
cuda.check(cuda._runtime.cudaLaunchHostFunc(stream, waits, None))
"""


@contextlib.contextmanager
def advancing(engine: Program, place: Path) -> Iterator[list[Any]]:
    """An advance that waits for the device in the body; the list has its outcome afterwards."""
    got: list[Any] = []
    engine.does(f"place = {str(place)!r}")
    engine.does(HOLD)
    asking = threading.Thread(target=lambda: got.append(engine.run("policy.advance(), value()")))
    asking.start()
    try:
        until(lambda: (place / "begun").exists())
        yield got
    finally:
        (place / "go").touch()
        asking.join()


def versions(house: House) -> list[tuple[int, list[int]]]:
    """The complete versions that the keeper has, and their users."""
    return sorted((one["version"], one["users"]) for one in house.sets() if one["sealed"])


def test_an_engine_goes_on_to_the_next_version(house: House) -> None:
    trainer, engine = pair(house)
    pid, before = engine.process.pid, engine.free()
    for version in range(2, 30):
        trainer.does(f"write({version})")
        assert engine.run("[value(), policy.version]") == [version - 1, version - 1]
        until(lambda: [users for _, users in versions(house)] == [[pid], []])
        assert engine.run("policy.advance()") == version
        assert engine.run("[value(), policy.version, stays()]") == [version, version, True]
        assert engine.run("policy.advance()") == version
        assert "CUDA error 1" in engine.run(OVERWRITE.format("tensors['a']"))
    until(lambda: versions(house) == [(29, [pid])])
    assert engine.free() == before
    assert "no version before" in engine.run("policy.back()")
    late = house.program()
    late.does("attached()")
    assert late.run("value()") == 29


def test_an_engine_goes_back(house: House) -> None:
    trainer, engine = pair(house, back=True)
    pid, before = engine.process.pid, engine.free()
    trainer.does("write(2)")
    for _ in range(3):
        assert engine.run("[policy.advance(), value(), stays()]") == [2, 2, True]
        assert versions(house) == [(1, [pid]), (2, [pid])]
        assert engine.run("[policy.back(), value(), stays()]") == [1, 1, True]
    trainer.does("write(3)")
    until(lambda: [version for version, _ in versions(house)] == [1, 3])
    assert engine.run("[policy.advance(), value(), policy.back(), value()]") == [3, 3, 1, 1]
    assert engine.run("[policy.advance(), policy.settle(), value()]") == [3, None, 3]
    assert "no version before" in engine.run("policy.back()")
    until(lambda: engine.free() == before)


def test_a_thousand_advances_and_returns(house: House) -> None:
    trainer, engine = pair(house, back=True)
    before = engine.free()
    engine.does(
        "def moves(now, last):\n"
        "    wrong = [policy.advance() and value() != now]\n"
        "    wrong += [policy.back() and value() != last, policy.advance() and value() != now]\n"
        "    return any(wrong) or not stays()"
    )
    last = 1
    for i in range(334):
        trainer.does(f"write({i % 200 + 2})")
        assert engine.run(f"moves({i % 200 + 2}, {last})") is False
        last = i % 200 + 2
    engine.does("policy.settle()")
    until(lambda: engine.free() == before)


def test_a_module_follows_what_it_has_published(house: House) -> None:
    engine, trainer = house.program(), house.program()
    for program in (engine, trainer):
        program.does(FOLLOW)
    engine.does("made = module(5); weight = made._parameters['tied']; address = weight.data_ptr()")
    engine.does("with tms.kept('set') as k: k.publish(made); policy = k.follow()")
    engine.does("address = weight.data_ptr()")
    trainer.does("write(9)")
    assert engine.run("weight.bytes()[0], policy.advance(), weight.bytes()[0]") == [5, 2, 9]
    assert engine.run("weight.data_ptr() == address")
    trainer.does("user = module(0)")
    trainer.does("with tms.kept('set') as k: policy = k.follow(user)")
    assert trainer.run("user._parameters['tied'].bytes()[0]") == 9
    engine.does("del policy, made, weight")
    trainer.does("write(7)")
    assert trainer.run("policy.advance(), user._modules['layer']._buffers['scale'].bytes()[0]") == [
        3,
        7,
    ]


def test_a_version_begins_as_a_copy(house: House) -> None:
    trainer, engine = pair(house)
    trainer.does("published('set', 7)")
    trainer.does("with tms.kept('set').next(copy=True) as w: assert w['a'].bytes()[5] == 7")
    assert trainer.run("len(w)") == 0
    assert engine.run("policy.advance(), value()") == [3, 7]


def test_what_is_asleep_comes_back_as_the_newest(house: House) -> None:
    trainer, engine = pair(house, back=True)
    trainer.does("write(2)")
    engine.run("tms.pause()")
    assert engine.run("policy.advance()") == 2
    engine.run("tms.resume()")
    assert engine.run("value(), stays()") == [2, True]
    engine.run("tms.pause()")
    assert engine.run("policy.back()") == 1
    engine.run("tms.resume()")
    assert engine.run("value()") == 1
    engine.run("tms.pause(everything=True)")
    assert "everything of this process is paused" in engine.run("policy.advance()")
    engine.run("tms.resume()")
    assert engine.run("value(), policy.advance(), value()") == [1, 2, 2]


def test_a_trainer_that_offloads_its_optimizer(house: House) -> None:
    trainer, engine = pair(house)
    trainer.does("with tms.region('optimizer', backup='host'): state = torch.filled(4, 100)")
    trainer.does("following = tms.kept('set').next(); w = following.__enter__(); w['a'].fill_(8)")
    trainer.run("tms.pause('optimizer')")
    trainer.run("tms.pause('default')")  # what is being written, too
    assert engine.run("policy.advance()") == 1
    trainer.run("tms.resume('default')")
    trainer.run("following.__exit__(None, None, None)")
    assert engine.run("policy.advance(), value()") == [2, 8]
    trainer.run("tms.resume('optimizer')")
    assert trainer.run("state.bytes()[0]") == 4


def test_other_versions_are_refused(house: House) -> None:
    trainer, engine = pair(house)
    for publish, words in (
        ("published('set', 2, size=MiB + 1)", 'its tensor "a" is uint8'),
        ("with tms.kept('set') as k: k.publish({'b': torch.filled(1, 4)})", 'it has no tensor "a"'),
        (
            "with tms.kept('set') as k: k.publish({n: torch.filled(1, 4) for n in 'ab'})",
            'its tensor "a" is float32',
        ),
    ):
        trainer.does(publish.replace("MiB", str(MiB)))
        refused = engine.run("policy.advance()")
        assert "cannot take the place of version 1" in refused
        assert words in refused, refused
        assert engine.run("value(), policy.version") == [1, 1]
    trainer.does("following = tms.kept('set').next(); w = following.__enter__()")
    assert "cannot take the place of" in engine.run("policy.advance()"), "it is being written"
    assert "is on cuda:0" in trainer.run("tms.kept('set').next('cpu').__enter__()")
    assert "no complete set" in trainer.run("tms.kept('none').next().__enter__()")
    trainer.does("handle, address = ctypes.c_void_p(), ctypes.c_void_p()")
    for step in STEPS:
        trainer.does(step.replace("b'set'", "b'plain'"))
    trainer.does("raw('tms_kept_seal', handle, b'', 0)")
    assert "has format None" in trainer.run("tms.kept('plain').next().__enter__()")
    trainer.does("published('set', 6)")
    assert engine.run("policy.advance(), value()") == [5, 6]


def test_the_command_moves_engines_between_steps(house: House) -> None:
    trainer, engine = pair(house, back=True)
    second = house.program()
    second.does(FOLLOW + "follow()")
    trainer.does("write(2)")
    nothing = house.command("kept", "advance", "set")
    assert nothing.returncode == 1 and "no process follows it" in nothing.stderr
    engine.does("step = policy.step(); step.__enter__()")
    second.does("with policy.step(): pass")
    late = house.command("kept", "advance", "set", "--timeout", "0.1s")
    assert late.returncode == 1 and f"process {engine.process.pid}: " in late.stderr
    assert "a step of the program has not ended within 100ms" in late.stderr
    assert f"process {second.process.pid} has version 2" in late.stdout
    assert [engine.run("value()"), second.run("value()")] == [1, 2]
    waiting = house.start("kept", "advance", "set")
    engine.does("import time; time.sleep(0.1); step.__exit__(None, None, None)")
    assert waiting.wait(HANGS) == 0
    assert engine.run("value(), policy.version, stays()") == [2, 2, True]
    back = house.command("kept", "advance", "set", "--back")
    assert back.returncode == 1 and f"process {engine.process.pid} has version 1" in back.stdout
    assert f"process {second.process.pid}: " in back.stderr and "no version before" in back.stderr
    assert engine.run("value()") == 1


def test_steps_of_threads_and_advances_from_outside(house: House) -> None:
    """Each step sees one version from its first look to its last."""
    trainer, engine = pair(house)
    engine.does(
        "import threading\n"
        "over, torn, done = threading.Event(), [], []\n"
        "def steps():\n"
        "    while not over.is_set():\n"
        "        with policy.step():\n"
        "            seen = {tensors['a'].bytes()[i] for i in (0, 1000, -1)} | {value()}\n"
        "        torn.extend([seen] if len(seen) > 1 else []); done.append(seen)\n"
        "threads = [threading.Thread(target=steps) for _ in range(3)]\n"
        "[thread.start() for thread in threads] and None"
    )
    for version in range(2, 22):
        trainer.does(f"write({version})")
        moved = house.command("kept", "advance", "set")
        assert moved.returncode == 0, moved.stderr
    engine.does("over.set(); [thread.join() for thread in threads] and None")
    assert engine.run("torn, value(), len(done) > 0") == [[], 21, True]


def waits_to_step(pid: int, thread: int) -> bool:
    """Whether a thread waits for a move, by a futex of value 1, as no lock of Python's does."""
    said = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()
    return said[2:4] == ["0x80", "0x1"]


STEPPING = """
import threading
over = threading.Event()
def steps():
    while not over.is_set():
        with policy.step(): pass
outer = policy.step(); outer.__enter__()
thread = threading.Thread(target=steps); thread.start()
"""
"""A step on the main thread, and steps of another, which wait for the next move from outside."""


def stepping(house: House, trainer: Program, engine: Program) -> subprocess.Popen[str]:
    """`STEPPING`, and an advance from outside that keeps steps from beginning."""
    engine.does(STEPPING)
    trainer.does("write(2)")
    moving = house.start("kept", "advance", "set")
    pid, thread = engine.run("[os.getpid(), thread.native_id]")
    until(lambda: waits_to_step(pid, thread))
    return moving


def test_a_step_within_a_step(house: House) -> None:
    """It does not wait for a move that waits for the outer one, as of a program with two sets."""
    trainer, engine = pair(house)
    moving = stepping(house, trainer, engine)
    engine.does("with policy.step(): pass")
    engine.does("assert not outer.__exit__(None, None, None)")
    assert moving.wait(HANGS) == 0
    engine.does("over.set(); thread.join()")
    assert engine.run("value()") == 2


def test_a_step_that_another_thread_has_ended(house: House) -> None:
    """The thread that began it waits for moves even so."""
    trainer, engine = pair(house)
    engine.does(
        "import threading\n"
        "begun, again, seen = threading.Event(), threading.Event(), []\n"
        "def twice():\n"
        "    load().c.tms_kept_step_begin(); begun.set(); again.wait()\n"
        "    with policy.step(): seen.append(value())\n"
        "second = threading.Thread(target=twice); second.start(); begun.wait()\n"
        "load().c.tms_kept_step_end()"
    )
    moving = stepping(house, trainer, engine)
    engine.does("again.set()")
    pid, thread = engine.run("[os.getpid(), second.native_id]")
    until(lambda: waits_to_step(pid, thread))
    engine.does("assert not outer.__exit__(None, None, None)")
    assert moving.wait(HANGS) == 0
    engine.does("over.set(); thread.join(); second.join()")
    assert engine.run("seen") == [2]


def test_a_step_that_is_interrupted_as_it_begins(house: House, tmp_path: Path) -> None:
    trainer, engine = pair(house)
    engine.does(f"place = {str(tmp_path)!r}")
    engine.does(
        "import signal, threading, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def steps():\n"
        "    with policy.step():\n"
        "        open(place + '/begun', 'w').close()\n"
        "        while not os.path.exists(place + '/go'): time.sleep(0.01)\n"
        "thread = threading.Thread(target=steps); thread.start()"
    )
    until(lambda: (tmp_path / "begun").exists())
    trainer.does("write(2)")
    moving = house.start("kept", "advance", "set")
    engine.tell(
        json.dumps(
            "try:\n"
            "    while True:\n"
            "        with policy.step(): pass\n"
            "except KeyboardInterrupt:\n"
            "    thread.join()"
        )
    )
    until(lambda: waits_to_step(engine.process.pid, engine.process.pid))
    os.kill(engine.process.pid, signal.SIGINT)
    (tmp_path / "go").touch()
    assert moving.wait(HANGS) == 0
    assert json.loads(engine.answer()) is None
    trainer.does("write(3)")
    again = house.command("kept", "advance", "set", "--timeout", "1s")
    assert again.returncode == 0, again.stderr
    assert engine.run("value()") == 3


INTERRUPTED = """
import gc, sys
gc.disable()
OURS = os.path.dirname(tms.__file__), os.path.dirname(os.__file__) + "/contextlib.py"
kept = []
def interrupted(call, at):
    # Ctrl-C comes once at each step of the code of tms and contextlib. All tracebacks are kept.
    n = more = 1
    while more:
        left = n
        def trace(frame, event, _argument):
            nonlocal left
            if not frame.f_code.co_filename.startswith(OURS):
                return None
            frame.f_trace_opcodes = True
            if event in ("call", at):
                left -= 1
                if left == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace
        more = 0
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt as error:
            kept.append(error)
            more = 1
        sys.settrace(None)
        n += 1
    return n
"""


def test_steps_that_are_interrupted_anywhere_end(house: House) -> None:
    trainer, engine = pair(house)
    engine.does(INTERRUPTED)
    engine.does("def steps():\n    with policy.step(): pass")
    engine.does(
        "import threading\n"
        "begun, ends = threading.Event(), threading.Event()\n"
        "def holds():\n"
        "    with policy.step(): begun.set(); ends.wait()\n"
        "thread = threading.Thread(target=holds); thread.start(); begun.wait()"
    )
    assert engine.run("interrupted(steps, 'opcode')") > 50
    trainer.does("write(2)")
    late = house.command("kept", "advance", "set", "--timeout", "100ms")
    assert "a step of the program has not ended" in late.stderr, "no step has ended twice"
    engine.does("ends.set(); thread.join()")
    assert house.command("kept", "advance", "set", "--timeout", "5s").returncode == 0
    assert engine.run("value()") == 2


def test_versions_that_are_interrupted_anywhere_go(house: House) -> None:
    trainer, engine = pair(house)
    trainer.does("write(2)")
    before = engine.free()
    trainer.does(INTERRUPTED)
    trainer.does("def nothing():\n    with tms.kept('set').next(): pass")
    assert trainer.run("interrupted(nothing, 'line')") > 200
    until(lambda: engine.free() == before)
    newest = engine.run("policy.newest")
    trainer.does("write(3)")
    assert engine.run("[policy.advance(), value()]") == [newest + 1, 3]


def test_a_set_that_is_attached_twice_is_not_moved(house: House) -> None:
    trainer, engine = pair(house)
    engine.does("mine = tensors; attached(); other, tensors = tensors, mine")
    trainer.does("write(2)")
    assert "attached more than once" in engine.run("policy.advance()")
    engine.does("del other")
    assert engine.run("policy.advance(), value()") == [2, 2]
    engine.does("following = tms.kept('set').next(); w = following.__enter__(); w['a'].fill_(3)")
    engine.run("[held := w['a'], following.__exit__(None, None, None)] and None")
    assert "attached elsewhere" in engine.run("policy.advance()")
    assert engine.run("value()") == 2
    engine.does("del held, following")
    assert engine.run("policy.advance(), value()") == [3, 3]


def test_users_of_different_versions(house: House) -> None:
    trainer, first = pair(house)
    second = house.program()
    second.does(FOLLOW)
    trainer.does("write(2)")
    second.does("follow(back=True)")
    trainer.does("write(3)")
    assert [first.run("value()"), second.run("value()")] == [1, 2]
    assert second.run("policy.advance(), value()") == [3, 3]
    pids = [first.process.pid, second.process.pid]
    assert versions(house) == [(1, pids[:1]), (2, pids[1:]), (3, pids[1:])]
    second.kill()
    until(lambda: versions(house) == [(1, pids[:1]), (3, [])])
    assert first.run("policy.advance(), value()") == [3, 3]


def test_a_body_that_raises_leaves_the_set(house: House) -> None:
    trainer, engine = pair(house)
    before = engine.free()
    trainer.does(
        "def fails():\n"
        "    with tms.kept('set').next() as w:\n"
        "        w['a'].fill_(5); raise ValueError('no')"
    )
    assert "no" in trainer.run("fails()")
    until(lambda: engine.free() == before)
    assert engine.run("policy.advance(), value()") == [1, 1]


def killed_at(program: Program, call: str, nth: int, code: str) -> bool:
    """Has the driver kill a program at a call, and reports whether it came so far."""
    program.does(f"cuda.fail({call!r}, {nth}, -1)")
    try:
        program.run(code)
    except Exception:
        until(lambda: program.process.poll() is not None)
        return True
    return False


@pytest.mark.parametrize(
    "call",
    [
        *("cuMemCreate", "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle"),
        *("cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuLaunchKernel"),
    ],
)
def test_a_trainer_that_is_killed_at_any_call(house: House, call: str) -> None:
    """The engine has the version before or the one that is complete, and never a part of it."""
    trainer, engine = pair(house)
    before, last, killed, nth = engine.free(), 1, 0, 1
    while True:
        dies = house.program()
        dies.does(FOLLOW)
        done = not killed_at(dies, call, nth, f"write({nth + 1})")
        dies.kill()
        engine.run("policy.advance()")
        now = engine.run("value()")
        assert now in (last, nth + 1)
        assert engine.run("set(tensors['a'].bytes())" + f" == {{{now}}}")
        until(lambda: len(versions(house)) == 1 and engine.free() == before)
        last, killed, nth = now, killed + (not done), nth + 1
        if done:
            break
    assert killed > 0 and last == nth


@pytest.mark.parametrize(
    "call",
    ["cuMemImportFromShareableHandle", "cuMemUnmap", "cuMemMap", "cuMemSetAccess", "cuMemRelease"],
)
def test_an_engine_that_is_killed_at_any_call(house: House, call: str) -> None:
    """Other engines, and the trainer, go on; nothing of it stays."""
    trainer, witness = pair(house)
    version, killed, nth = 1, 0, 1
    while True:
        engine = house.program()
        engine.does(FOLLOW)
        engine.does("follow(back=True)")
        trainer.does(f"write({version + 1})")
        done = not killed_at(engine, call, nth, "[policy.advance(), policy.back()]")
        engine.kill()
        version += 1
        assert witness.run("policy.advance(), value()") == [version, version]
        left = [(version, [witness.process.pid])]
        until(lambda left=left: versions(house) == left)  # type: ignore[misc]
        killed, nth = killed + (not done), nth + 1
        if done:
            break
    assert killed > 0


def test_a_keeper_that_is_killed_and_followed(house: House) -> None:
    trainer, engine = pair(house, back=True)
    pid = engine.process.pid
    trainer.does("write(2)")
    assert engine.run("policy.advance()") == 2
    house.kill_keeper()
    assert engine.run("policy.back(), value()") == [1, 1]
    until(lambda: (1, [pid]) in versions(house))
    assert engine.run("policy.advance(), value()") == [2, 2]


def test_a_keeper_that_is_killed_with_both_versions(house: House) -> None:
    trainer, engine = pair(house, back=True)
    trainer.does("write(2)")
    assert engine.run("policy.advance()") == 2
    house.kill_keeper()
    assert versions(house) == [(1, [engine.process.pid]), (2, [engine.process.pid])]
    assert engine.run("policy.back(), value(), policy.advance(), value()") == [1, 1, 2, 2]
    trainer.does("write(3)")
    house.kill_keeper()  # no process has the newest
    for told in engine.run("policy.advance()"), trainer.run("write(4)"):
        assert "its newest version" in told and "lost with a keeper that was killed" in told
        assert "keep the version that they have; publish version 4 whole" in told
        assert "Publish it first" not in told
    assert engine.run("value(), policy.back(), value()") == [2, 1, 1]
    trainer.does("published('set', 5); write(6)")
    assert engine.run("policy.advance(), value(), stays()") == [5, 6, True]


def test_no_version_has_the_number_of_another(house: House) -> None:
    """Where it was dropped, or lost with keepers, and where a copy of it took the name over."""
    trainer, engine = pair(house)
    trainer.does("write(2)")
    house.move("demote", "set")
    house.move("drop", "set")
    trainer.does("published('set', 3)")
    assert engine.run("policy.newest") == 3
    house.kill_keeper()
    assert "publish version 4 whole" in engine.run("policy.newest")
    house.kill_keeper()
    trainer.does("published('set', 4)")
    assert engine.run("policy.newest, policy.version, policy.advance(), value()") == [4, 1, 4, 4]


def test_a_keeper_that_is_stopped(house: House) -> None:
    trainer, engine = pair(house, back=True)
    trainer.does("write(2)")
    assert engine.run("policy.advance()") == 2
    stop(house.keeper())
    try:
        assert engine.run("policy.back(), value()") == [1, 1]
        assert "does not answer" in engine.run("policy.advance()")
        assert engine.run("value()") == 1
    finally:
        os.kill(house.keeper(), signal.SIGCONT)
    assert engine.run("policy.advance(), value()") == [2, 2]


def test_a_version_that_was_demoted_comes_back(house: House) -> None:
    trainer, engine = pair(house)
    trainer.does("write(2)")
    house.move("demote", "set")
    assert engine.run("policy.advance(), value()") == [2, 2]


def test_a_version_is_verified(house: House) -> None:
    trainer = house.program()
    trainer.does(FOLLOW + "published('set', 1)")
    engine = house.program(TMS_VERIFY="1")
    engine.does(FOLLOW + "follow()")
    trainer.does("write(2)")
    assert house.sets()[0]["version"] == 2
    house.overwrite(0, 17, 99)
    assert "have changed" in engine.run("policy.advance()")
    assert engine.run("value()") == 1


def test_an_advance_after_a_return_that_was_not_settled(house: House) -> None:
    trainer, engine = pair(house, back=True)
    pid, before = engine.process.pid, engine.free()
    trainer.does("write(2)")
    assert engine.run("policy.advance()") == 2
    for _ in range(3):
        assert engine.run("policy.move('back'), value(), policy.before") == [1, 1, 2]
        assert engine.run("policy.move('advance'), value(), policy.before") == [2, 2, 1]
    assert engine.run("policy.move('back'), policy.settle(), value()") == [1, None, 1]
    until(lambda: versions(house) == [(1, [pid]), (2, [])])
    trainer.does("published('set', 3)")
    until(lambda: versions(house) == [(1, [pid]), (3, [])])
    engine.does("del policy, tensors")
    until(lambda: versions(house) == [(3, [])] and engine.free() == before)


def test_a_keeper_that_is_killed_while_an_advance_waits(house: House, tmp_path: Path) -> None:
    trainer, engine = pair(house)
    pid = engine.process.pid
    trainer.does("write(2)")
    with advancing(engine, tmp_path) as got:
        until(lambda: (2, [pid]) in versions(house))
        house.kill_keeper()
        assert versions(house) == [(1, [pid]), (2, [pid])]
    assert got == [[2, 2]]
    assert versions(house) == [(2, [pid])]


def test_a_pause_of_everything_keeps_its_timeout_during_an_advance(
    house: House, tmp_path: Path
) -> None:
    trainer, engine = house.program(), house.program(LD_PRELOAD=REACH)
    for program in (trainer, engine):
        program.does(FOLLOW)
    trainer.does("published('set', 1)")
    engine.does("follow()")
    trainer.does("write(2)")
    with advancing(engine, tmp_path) as got:
        late = house.command("pause", str(engine.process.pid), "--everything", "--timeout", "100ms")
        assert late.returncode != 0 and "within" in late.stderr, late.stderr
    assert got == [[2, 2]]


def test_sets_of_one_process_that_cannot_all_go_back(house: House) -> None:
    trainer, engine = house.program(), house.program()
    for program in (trainer, engine):
        program.does(FOLLOW + "from tms._kept_together import move\n")
    for name in ("main", "draft"):
        trainer.does(f"published({name!r}, 1)")
        engine.does(f"follow({name!r}); {name} = policy")
        trainer.does(f"write(2, {name!r})")
    engine.does("cuda.fail('cuMemMap', 2, 999)")
    words = engine.run("move('advance', [main, draft], None, 60)")
    assert "failed, and all have the versions that they had" in words
    assert engine.run("main.version, draft.version") == [1, 1]
    engine.does("cuda.forget_failures(); cuda.fail('cuMemMap', 2, 999)")
    engine.does("cuda.fail('cuMemMap', 4, 999)")
    words = engine.run("move('advance', [main, draft], None, 60)")
    assert "set 'main' stays at version 2" in words
    assert engine.run("main.version, draft.version") == [2, 1]
    engine.does("cuda.forget_failures()")
    assert engine.run("move('back', [main, draft], None, 60)").count("no version before") == 1
    assert engine.run("move('advance', [main, draft], None, 60)") == 2
    assert engine.run("main.version, draft.version") == [2, 2]


def test_followers_of_one_name_move_together(house: House) -> None:
    """A process has a chunk once, so the second cannot follow the first, which then goes back."""
    trainer, engine = pair(house)
    engine.does("one, of_one = policy, tensors")
    trainer.does("write(2)")
    engine.does("follow()")
    for each in ("one", "policy"):
        engine.does(f"with {each}.step(): pass")
    trainer.does("write(3)")
    before, maps = engine.free(), engine.run("cuda.calls('cuMemMap')")
    moved = house.command("kept", "advance", "set")
    assert moved.returncode == 1 and "attached elsewhere" in moved.stderr
    assert engine.run("cuda.calls('cuMemMap')") == maps + 2  # there and back
    assert engine.run("one.version, of_one['a'].bytes()[0], policy.version, value()") == [
        *(1, 1, 2, 2)
    ]
    assert engine.free() == before


def test_an_exception_holds_no_version(house: House) -> None:
    trainer, engine = pair(house)
    before, alone = trainer.free(), [(1, [engine.process.pid])]
    trainer.does(
        "def begins():\n"
        "    global held\n"
        "    try:\n"
        "        with tms.kept('set').next() as w: pass\n"
        "    except tms.TmsError as error: held = error\n"
        "    else: assert False\n"
    )
    for failing in ("cuMemCreate", "cuMemMap", "cuLaunchKernel"):
        trainer.does(f"cuda.fail({failing!r}, 1, 2); cuda.fail({failing!r}, 2, 2)")
        trainer.does("begins()")
        trainer.does("cuda.forget_failures()")
        until(lambda: versions(house) == alone and trainer.free() == before)


def test_what_lies_beside_a_parameter_comes_along(house: House) -> None:
    trainer, engine = house.program(), house.program()
    for program in (trainer, engine):
        program.does(FOLLOW)
    engine.does("both = torch.filled(3, 8); weight, beside = both[:4], both[4:]")
    engine.does(
        "with tms.kept('set') as k: k._publish(torch, {'/_parameters/weight': weight, "
        "'/beside': beside}, {'/_parameters/weight', '/beside'}, False, host=[], values={})"
    )
    engine.does("follow()")
    trainer.does("write(9)")
    assert engine.run("policy.advance(), value('/_parameters/weight'), value('/beside')") == [
        *(2, 9, 3)
    ]
