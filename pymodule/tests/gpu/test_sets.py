"""Sets of tensors on a GPU: their maker is killed, and others map them.

With -s the figures are printed. KEPT_GIB is how large the set is: 64, or what the device has room
for.
"""

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import MiB, free_memory, torch_on_gpu
from following import OBEY, Follower

torch = torch_on_gpu()

TMS = Path(__file__).parents[3] / "build" / "bin" / "tms"
USERS = int(os.environ.get("KEPT_USERS", "4"))
SLACK = 64 * MiB

PROGRAM = (
    """
import json, os, sys, time
import torch, tms
from tms._library import load
torch.cuda.init()
torch.zeros(1, device="cuda")

class Model(torch.nn.Module):
    def __init__(self, gib, device):
        super().__init__()
        for i in range(gib):
            weight = torch.full((1 << 15, 1 << 14), i + 1, device=device, dtype=torch.bfloat16)
            self.register_parameter(f"w{i}", torch.nn.Parameter(weight, requires_grad=False))
        self.tied = self.w0
        eighths = torch.full((256, 512), 0.5, device=device).to(torch.float8_e4m3fn)
        self.register_buffer("eighths", eighths)
        self.register_buffer("column", torch.arange(1000, device=device).view(100, 10).t())
        self.register_buffer("scalar", torch.tensor(7.0, device=device))

def check(model, gib):
    assert model.tied is model.w0 or model.tied.data_ptr() == model.w0.data_ptr()
    for i in range(gib):
        weight = getattr(model, f"w{i}")
        assert bool((weight.view(torch.int16) == torch.tensor(i + 1.0, dtype=torch.bfloat16)
                     .view(torch.int16).item()).all()), i
    assert bool((model.eighths.float() == 0.5).all()) and float(model.scalar) == 7
    assert model.column.cpu().equal(torch.arange(1000).view(100, 10).t())

def timed(work, waits=True):
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if waits:
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3

def attached(gib, copy=False):
    global model
    model = Model(gib, "meta")
    with tms.kept("gpu") as k:
        assert k.complete
        return timed(lambda: k.attach(model, copy=copy))
"""
    + OBEY
)


class Program(Follower):
    def __init__(self, **variables: str) -> None:
        super().__init__([sys.executable, "-c", PROGRAM], env={**os.environ, **variables})

    def run(self, code: str) -> Any:
        return json.loads(self.ask(json.dumps(code)))

    def does(self, code: str) -> None:
        assert (answer := self.run(code)) is None, answer

    def takes(self, code: str) -> float:
        """Milliseconds."""
        answer = self.run(code)
        assert isinstance(answer, float), answer
        return answer


def command(*arguments: str) -> str:
    done = subprocess.run(
        [TMS, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def keeper() -> int:
    runtime = os.environ["XDG_RUNTIME_DIR"]
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(f"{runtime}/tms/keeper.sock")
        peer = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])


def until_free(size: int) -> None:
    """Waits until the device has about `size` bytes free."""
    start = time.monotonic()
    while free_memory() < size - SLACK:
        assert time.monotonic() - start < 60, (free_memory() / MiB, size / MiB)
        time.sleep(0.05)


@pytest.fixture(scope="module")
def gib() -> Iterator[int]:
    """Publishes a set, kills the maker, and returns the set's size in GiB."""
    before = free_memory()
    size = int(os.environ.get("KEPT_GIB", min(64, (before >> 30) * 8 // 10 - 2)))
    maker = Program()
    maker.does(f"model = Model({size}, 'cuda')")
    at_most = maker.run("torch.cuda.max_memory_allocated() >> 20")
    published = maker.takes("timed(lambda: tms.kept('gpu').publish(model))")
    maker.does(f"check(model, {size})")
    maker.kill()
    print(f"\n{size} GiB on {torch.cuda.get_device_name()}: made in {at_most} MiB, ", end="")
    print(f"published in {published:.0f} ms")
    yield size
    command("kept", "drop", "gpu")
    until_free(before)
    assert command("kept", "--json").strip() == "[]"
    os.kill(keeper(), signal.SIGKILL)


def test_a_new_process_attaches(gib: int) -> None:
    [one] = json.loads(command("kept", "--json"))
    assert one["tensors"] == gib + 4 and one["users"] == []
    user = Program()
    before = free_memory()
    times = []
    for _ in range(5):
        times.append(user.takes(f"attached({gib})"))
        user.does(f"check(model, {gib})")
        user.does("del model; tms.empty_cache()")
    took = " ".join(f"{each:.1f}" for each in times)
    print(f"attach of {len(one['chunks'])} chunks: {took} ms")
    assert free_memory() > before - 1024 * MiB  # nothing was copied
    user.kill()


def test_several_share_one_copy(gib: int) -> None:
    before = free_memory()
    users = [Program() for _ in range(USERS)]
    for user in users:
        user.takes(f"attached({gib})")
    each = (before - free_memory()) / USERS / MiB
    print(f"{USERS} users: {each:.0f} MiB more on the device for each")
    assert each < 1200  # a context
    assert len(json.loads(command("kept", "--json"))[0]["users"]) == USERS
    for user in users:
        user.does(f"check(model, {gib})")
        user.kill()


def test_it_cannot_be_written(gib: int) -> None:
    user, reckless, witness = Program(), Program(), Program()
    for program in (user, reckless, witness):
        program.takes(f"attached({gib})")
    for other in ("torch.ones_like(model.scalar)", "torch.tensor(1.0)"):  # cudaMemcpyAsync
        write = f"model.scalar.copy_({other})"
        answer = str(user.run(write))
        print(f"{write}: {answer.splitlines()[0]}")
        assert "invalid argument" in answer
    user.does(f"check(model, {gib})")
    answer = str(reckless.run("model.scalar.zero_(), torch.cuda.synchronize()"))
    print(f"a kernel that writes: {answer.splitlines()[0]}")
    assert "illegal memory access" in answer
    reckless.kill()
    witness.does(f"check(model, {gib})")
    user.kill()
    witness.kill()


def test_the_maker_can_no_longer_write() -> None:
    maker = Program()
    maker.does("model = torch.nn.Linear(64, 64, device='cuda'); tms.kept('small').publish(model)")
    answer = str(maker.run("model.weight.data.copy_(torch.zeros_like(model.weight))"))
    assert "invalid argument" in answer, answer
    maker.kill()
    command("kept", "drop", "small")


def test_private_copies(gib: int) -> None:
    size = 4
    maker, user = Program(), Program()
    room = free_memory() >> 30
    if room < 3 * size:
        pytest.skip(f"{room} GiB are free")
    maker.does(f"data = torch.full(({size} << 30,), 5, dtype=torch.uint8, device='cuda')")
    maker.does("tms.kept('copied').publish({'data': data})")
    maker.kill()
    user.does("k = tms.kept('copied')")
    took = user.takes("timed(lambda: globals().update(tensors=k.attach(copy=True)))")
    print(f"a private copy of {size} GiB: {took:.1f} ms")
    user.does("tensors['data'][0] = 6; assert tensors['data'][0] == 6")
    user.kill()
    command("kept", "drop", "copied")


def test_pauses(gib: int) -> None:
    user = Program()
    user.takes(f"attached({gib})")
    for _ in range(3):
        out, back = user.takes("timed(tms.pause)"), user.takes("timed(tms.resume)")
        print(f"pause {out:.1f} ms, resume {back:.1f} ms")
        user.does(f"check(model, {gib})")
    out = user.takes("timed(lambda: tms.pause(everything=True), waits=False)")
    begin = time.perf_counter()
    user.run("tms.resume()")
    back = (time.perf_counter() - begin) * 1e3
    print(f"everything: {out:.0f} ms, back {back:.0f} ms")
    user.does(f"check(model, {gib})")
    user.kill()


def test_host_memory_and_disk(gib: int) -> None:
    before = free_memory()
    room = {"host": gib + 8, "disk": shutil.disk_usage(tempfile.gettempdir()).free >> 30}
    for to in ("host", "disk"):
        if room[to] <= gib:
            print(f"no room for {gib} GiB on {to}")
            continue
        print(command("kept", "demote", "gpu", "--to", to), end="")
        until_free(before + (gib << 30))
        print(command("kept", "promote", "gpu"), end="")
        user = Program()
        user.takes(f"attached({gib})")
        user.does(f"check(model, {gib})")
        user.kill()
    killed = subprocess.Popen([TMS, "kept", "demote", "gpu"])
    time.sleep(1)
    killed.kill()
    killed.wait()
    user = Program()
    user.takes(f"attached({gib})")  # promotes it if it was faster
    user.does(f"check(model, {gib})")
    user.kill()
    until_free(before)


def test_contents_are_verified(gib: int) -> None:
    """By the command, also from host memory, and by an attach."""
    [one] = json.loads(command("kept", "verify", "gpu", "--json"))
    assert one["changes"] == [] and one["error"] == "" and one["bytes"] >= gib << 30
    print(f"verified in {one['seconds']:.2f} s, with its context")
    trusting, careful = Program(), Program(TMS_VERIFY="1")
    plain, verified = [], []
    for _ in range(5):
        for user, times in ((trusting, plain), (careful, verified)):
            times.append(user.takes(f"attached({gib})"))
            user.does("del model; tms.empty_cache()")
    speed = one["bytes"] / (min(verified) - min(plain)) / 1e6
    print(
        f"attach {min(plain):.1f} ms, verified {verified[0]:.1f}, then {min(verified):.1f} ms: ",
        end="",
    )
    print(f"{speed:.0f} GB/s")
    for user in (trusting, careful):
        user.kill()
    maker = Program()
    maker.does(
        "data = torch.arange(64 << 20, device='cuda'); tms.kept('small').publish({'a': data})"
    )
    maker.kill()
    command("kept", "demote", "small")
    assert json.loads(command("kept", "verify", "small", "--json"))[0]["error"] == ""
    command("kept", "drop", "small")


def another_keeper(users: list[int]) -> None:
    """Kills the keeper, and expects the next one to have the set."""
    os.kill(keeper(), signal.SIGKILL)
    begin = time.perf_counter()
    [one] = json.loads(command("kept", "--json"))
    print(f"a new keeper has {len(one['chunks'])} chunks after {time.perf_counter() - begin:.2f} s")
    assert one["users"] == users


def test_another_keeper_takes_over(gib: int) -> None:
    """By the descriptors that a process keeps, also of what it has paused."""
    user = Program()
    before = free_memory()
    user.takes(f"attached({gib})")
    for pause in (None, "tms.pause()", "tms.pause(everything=True)"):
        if pause:
            user.run(pause)
        another_keeper([user.process.pid])
        if pause:
            user.run("tms.resume()")
        user.does(f"check(model, {gib})")
    other = Program()
    other.takes(f"attached({gib})")
    user.kill()
    another_keeper([other.process.pid])
    other.does(f"check(model, {gib})")
    other.kill()
    until_free(before)
