"""stats has the promised shape, and its numbers add up."""

from __future__ import annotations

import ast
from pathlib import Path

import children
import cuda
import tags
from cuda import MiB
from simulator import DEVICE_MEMORY

import tms


def of_tag(tag: str) -> tms.TagStats:
    (found,) = tags.entries(tag)
    return found


def test_shape() -> None:
    with tms.region("shape"):
        pointer = cuda.malloc(3 * MiB)
    stats = tms.stats()
    assert stats.keys() == tms.Stats.__annotations__.keys()
    assert isinstance(stats["version"], str)
    assert stats["started"] is True
    device = next(device for device in stats["devices"] if device["device"] == 0)
    assert device.keys() == tms.DeviceStats.__annotations__.keys()
    assert device["pauses"].keys() == tms.TotalStats.__annotations__.keys()
    assert device["uuid"] == "GPU-63756461-7369-6d2d-6465-766963652d00"
    assert device["total_bytes"] == DEVICE_MEMORY
    assert device["free_bytes"] == cuda.free_memory()
    for tag in device["tags"]:
        assert tag.keys() == tms.TagStats.__annotations__.keys()
        for name, value in tag.items():
            if name == "tag":
                assert isinstance(value, str)
            else:
                floats = name.endswith("seconds") or name == "paused_since"
                assert isinstance(value, (int, float) if floats else int), name
                assert value >= 0, name
    cuda.free(pointer)


def test_numbers() -> None:
    with tms.region("numbers", backup="host"):
        first, second = cuda.malloc(8 * MiB), cuda.malloc(3 * MiB)
    tag = of_tag("numbers")
    assert tag["segments"] == 2
    assert tag["live_bytes"] == 11 * MiB
    assert tag["physical_bytes"] >= 11 * MiB
    assert tag["paused_bytes"] == 0
    assert tag["slack_bytes"] == tag["physical_bytes"] - 11 * MiB

    def totals() -> dict[str, tms.TotalStats]:
        (device,) = (d for d in tms.stats()["devices"] if d["device"] == 0)
        return {"pauses": device["pauses"], "resumes": device["resumes"]}

    before = totals()
    physical = tag["physical_bytes"]
    tms.pause("numbers")
    tag = of_tag("numbers")
    assert tag["segments"] == 2
    assert tag["live_bytes"] == 11 * MiB
    assert tag["physical_bytes"] == 0
    assert tag["paused_bytes"] == physical
    assert tag["backup_bytes"] >= 11 * MiB
    assert tag["last_pause_seconds"] > 0

    tms.resume("numbers")
    tag = of_tag("numbers")
    assert tag["physical_bytes"] == physical
    assert tag["paused_bytes"] == 0
    assert tag["last_resume_seconds"] > 0
    after = totals()
    for name in ("pauses", "resumes"):
        assert after[name]["count"] == before[name]["count"] + 1
        assert after[name]["bytes"] == before[name]["bytes"] + physical
        assert after[name]["contents_bytes"] > before[name]["contents_bytes"]

    cuda.free(first)
    assert of_tag("numbers")["live_bytes"] == 3 * MiB
    cuda.free(second)
    assert tags.total("live_bytes", "numbers") == tags.total("physical_bytes", "numbers") == 0


def test_odd_tag_names() -> None:
    name = 'quote" backslash\\ newline\n \u00fc \U0001f600'
    with tms.region(name):
        pointer = cuda.malloc(2 * MiB)
    assert of_tag(name)["live_bytes"] == 2 * MiB
    cuda.free(pointer)


def test_before_anything_was_used() -> None:
    out = children.output("import tms; s = tms.stats(); print(s['started'], s['devices'])")
    assert out == "False []\n"


def test_what_a_pause_needs() -> None:
    with tms.region("needs host", backup="host"):
        host = cuda.malloc(3 * MiB)
    with tms.region("needs disk", backup="disk"):
        disk = cuda.malloc(3 * MiB)
    assert of_tag("needs host")["pause_host_bytes"] == 4 * MiB
    assert of_tag("needs host")["pause_disk_bytes"] == 0
    assert of_tag("needs disk")["pause_host_bytes"] == 0
    assert of_tag("needs disk")["pause_disk_bytes"] == 4 * MiB
    tms.pause("needs disk")
    assert of_tag("needs disk")["pause_disk_bytes"] == 0
    tms.resume("needs disk")
    assert tms.stats()["capturing"] is False
    with cuda.Capture():
        assert tms.stats()["capturing"] is True
    available = tms.stats()["host_available_bytes"]
    assert available is None or available > MiB
    cuda.free(host)
    cuda.free(disk)


def test_of_the_program_s_pools() -> None:
    code = "import cuda, tms\nwith tms.region('a'): cuda.malloc(1)\nprint(tms.stats()['pools'])"
    assert children.output(code) == "None\n"
    (pool,) = ast.literal_eval(children.output(code, TMS_INIT_POOL="caching"))
    assert (pool["device"], pool["tag"], pool["stats"]["kind"]) == (0, "a", "caching")
    assert pool["stats"]["requested_bytes"] == 1


def test_where_files_go(tmp_path: Path) -> None:
    code = (
        "import cuda, tms\nwith tms.region(): cuda.malloc(1)\nprint(tms.stats()['disk_directory'])"
    )
    assert children.output(code, TMPDIR=str(tmp_path), TMS_DISK_BACKUP_DIR="") == f"{tmp_path}\n"
    assert children.output(code, TMS_DISK_BACKUP_DIR=str(tmp_path)) == f"{tmp_path}\n"
