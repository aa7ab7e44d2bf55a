"""Programs of one memory control group whose contents have no room there together."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import publishing
import pytest
from publishing import REACH, House, MiB, Program, until

house = publishing.house

EACH = 96 * MiB
ROOT = Path("/sys/fs/cgroup")


class Group:
    """A control group, of either version."""

    def __init__(self) -> None:
        one = (ROOT / "memory" / "memory.limit_in_bytes").exists()
        self.place = (ROOT / "memory" if one else ROOT) / f"tms-test-{uuid.uuid4().hex[:8]}"
        self.place.mkdir()
        self._limit = self.place / ("memory.limit_in_bytes" if one else "memory.max")
        self._used = self.place / ("memory.usage_in_bytes" if one else "memory.current")

    def leave(self, size: int) -> None:
        self._limit.write_text(str(int(self._used.read_text()) + size))

    def take(self, program: Program) -> None:
        self.place.joinpath("cgroup.procs").write_text(str(program.process.pid))

    def inside(self) -> list[str]:
        """The words before a command's that put it into the group."""
        return ["sh", "-c", f'echo $$ > {self.place}/cgroup.procs; exec "$@"', "sh"]


@pytest.fixture
def group() -> Iterator[Group]:
    try:
        made = Group()
        assert made._limit.exists()
    except (OSError, AssertionError):
        pytest.skip("no memory control group can be made here")
    yield made
    until(lambda: made.place.joinpath("cgroup.procs").read_text() == "")
    made.place.rmdir()


def programs(house: House, group: Group, **variables: str) -> list[Program]:
    """They enter the group with their memory, so a pause gives it none of the device's back."""
    made = [
        house.program(
            LD_PRELOAD=REACH,
            TMS_CONTROL="1",
            CUDASIM_MEMORY="1G",
            CUDASIM_DEVICES="1",
            TMS_DEBUG="",
            **variables,
        )
        for _ in range(3)
    ]
    for value, program in enumerate(made):
        program.does(f"with tms.region('m', backup='host'): a = cuda.malloc({EACH})")
        program.does(f"cuda.write(a, bytes([{value + 1}]) * {EACH})")
        program.does("import gc; gc.collect(); ctypes.CDLL(None).malloc_trim(0)")
        group.take(program)
    group.leave(EACH + EACH // 2)
    return made


def intact(made: list[Program]) -> list[bool]:
    return [
        program.run(f"cuda.read(a, {EACH}) == bytes([{value + 1}]) * {EACH}")
        for value, program in enumerate(made)
    ]


def test_pauses_at_once_take_no_more_than_there_is(group: Group, house: House) -> None:
    made = programs(house, group)
    numbers = [str(program.process.pid) for program in made]
    planned = house.command("pause", "--dry-run", *numbers)
    assert planned.returncode == 1 and planned.stderr.count("it does not fit") == 2
    started = [house.start("pause", number) for number in numbers]
    for one in started:
        one.communicate()
    assert sorted(one.returncode for one in started) == [0, 1, 1]
    assert [program.process.poll() for program in made] == [None] * 3
    (group._limit).write_text("-1" if "limit_in_bytes" in group._limit.name else "max")
    house.command("resume", "--all")
    assert intact(made) == [True] * 3


def test_a_job_is_paused_as_a_whole_or_not_at_all(group: Group, house: House) -> None:
    made = programs(house, group, TORCHELASTIC_RUN_ID="nightly")
    paused = house.command("pause", "--job", "nightly")
    assert paused.returncode == 1 and "with those of the job before it" in paused.stderr
    assert [program.process.poll() for program in made] == [None] * 3
    assert "paused" not in house.command("ps").stdout


def test_a_demotion_needs_room_like_a_pause(group: Group, house: House) -> None:
    maker = house.program(CUDASIM_MEMORY="1G")
    maker.does(f"published('set', 3, {EACH})")
    maker.kill()
    group.leave(EACH // 2)

    def demote(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                *group.inside(),
                publishing.BUILD / "bin" / "tms",
                "kept",
                "demote",
                "set",
                *arguments,
            ],
            env={**house.environment(), **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    refused = demote()
    assert refused.returncode == 1 and "--to disk needs none" in refused.stderr
    if os.path.ismount("/dev/shm"):
        refused = demote("--to", "disk", TMS_DISK_BACKUP_DIR="/dev/shm/tms-test/deeper")
        assert refused.returncode == 1 and "which /dev/shm/tms-test/deeper is" in refused.stderr
    directory = str(house.place / "not" / "yet")
    if demote("--to", "disk", TMS_DISK_BACKUP_DIR=directory).returncode == 0:  # it is no tmpfs
        assert house.sets()[0]["place"] == "disk"
