"""The step advance-1B of scripts/bench.sh engines, with stand-ins for engine and trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import publishing
import pytest
from publishing import TESTS, House
from simulator import HANGS, PYMODULE

house = publishing.house

BENCH = PYMODULE.parent / "scripts" / "bench"

ENGINE = """
import json, os, sys, time
from pathlib import Path
sys.path.insert(0, DRIVERS)
import driving, torch, tms
from tms._attached import attached
attached()
folder, load_format = Path(sys.argv[1]), sys.argv[2]
trained = "trained" in " ".join(sys.argv)
number = lambda path: int((path / "value").read_text())
ranks = range(int(sys.argv[sys.argv.index("--tp") + 1]))
policies = []
if load_format == "tms":
    for rank in ranks:
        with tms.kept(f"model-{os.path.basename(folder)}-rank{rank}") as k:
            assert k.complete == trained
            if not trained:
                k.publish({"w": torch.filled(number(folder), 1 << 20, dtype=torch.uint8)})
            policies.append(k.follow())
    def value():
        (found,) = {policy.tensors["w"].bytes()[0] for policy in policies}
        return found
else:
    own = [number(folder)]
    value = lambda: own[0]
def tokens(count):
    return [[(value() + i) % 251] * count for i in range(3)]
def moved(word, *rest):
    begin, version = time.monotonic(), None
    if word in ("advance", "keep"):
        if len({policy.newest for policy in policies}) > 1:
            raise RuntimeError("ranks find different versions")
        for policy in policies:
            policy.keeps = word == "keep"
            version = policy.advance()
    elif word == "back":
        version = [policy.back() for policy in policies][0]
    elif word == "read":
        own[0] = number(Path(rest[0]))
    elif SPOILT:
        raise RuntimeError("no such handle")
    else:
        own[0] = int(Path(rest[0]).read_text())
    now = time.monotonic()
    return {"version": version, "seconds": now - begin, "dropped": True, "end": now}
port = int(sys.argv[sys.argv.index("--port") + 1])
for line, answer in driving.requests(port, sys.stdout, first=tokens(1), loading=0.1):
    word, *rest = line.split()
    try:
        if word in ("token", "tokens"):
            answer(tokens=tokens(1 if word == "token" else 24))
        elif word == "samples" and int(rest[0]) < 50:
            answer(samples=[[one] * int(rest[0]) for one in tokens(24)])
        elif word in ("samples", "moves"):
            while True:
                word == "samples" or (moved("back"), moved("keep"))
        else:
            answer(**moved(word, *rest))
    except Exception as error:
        answer(error=str(error))
"""

LEARNER = """
import json, sys, time
from pathlib import Path
import torch, tms
value = int((Path(sys.argv[1]) / "value").read_text())
print(json.dumps("ready"), flush=True)
for line in sys.stdin:
    word, argument = json.loads(line)
    answer = {"sealed": time.monotonic(), "making": 0.0}
    def at(moment):
        if moment == argument.get("stop"):
            print(json.dumps(moment), flush=True)
            time.sleep(0 if moment == "sealing" and len(argument["names"]) == 1 else 1000)
    if word == "learn":
        value += 7
        answer = {"reward": 1.0}
    elif word == "next":
        names = argument["names"]
        for rank in argument.get("ranks", range(len(names))):
            with tms.kept(names[rank]).next() as tensors:
                at("made")
                at("half")
                tensors["w"].fill_(value)
                if len(names) == 1 or rank == 1:
                    at("sealing")
        answer = {"sealed": time.monotonic(), "making": 0.0}
    else:
        folder = Path(argument["path"] if word == "handles" else argument)
        if word == "file":
            folder.mkdir(exist_ok=True)
            folder = folder / "value"
        folder.write_text(str(value))
    print(json.dumps(answer), flush=True)
"""

RUN = """
import sys
from pathlib import Path
place, bench = map(Path, sys.argv[1:3])
sys.path.insert(0, str(bench))
sys.argv = ["engines", "vllm", "--models", str(place), sys.argv[3]]
import advancing, engines, serving
serving.DRIVERS, advancing.LEARNER = place, place / "learner.py"
advancing.STEPS = {"1B": (2, 2)}
serving.Bench._make_checkpoint = lambda bench, model: place / "model"
engines.main()
"""


def ran(
    house: House, place: Path, step: str, spoilt: bool
) -> tuple[str, list[dict[str, object]], int]:
    """What the step prints, its rows, and its exit status."""
    drivers = f"DRIVERS, SPOILT = {str(TESTS / 'gpu')!r}, {spoilt}\n"
    (place / "vllm_kept_driver.py").write_text(drivers + ENGINE)
    (place / "learner.py").write_text(LEARNER)
    (place / "model").mkdir()
    (place / "model" / "value").write_text("1")
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(place), str(BENCH), step],
        env={
            **house.environment(),
            "OUT": str(place),
            "PYTHONPATH": f"{TESTS}:{TESTS / 'kept'}",
        },
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert (place / "engines.json").exists(), done.stdout + done.stderr
    return done.stdout, json.loads((place / "engines.json").read_text())["rows"], done.returncode


@pytest.mark.parametrize("spoilt", [False, True])
def test_an_engine_follows_a_trainer(house: House, tmp_path: Path, spoilt: bool) -> None:
    """A way that fails is reported, and the others go on."""
    said, rows, status = ran(house, tmp_path, "advance-1B", spoilt)
    assert status == int(spoilt), said + (tmp_path / "engines.log").read_text()
    equal = {row["summary"]: row["equal"] for row in rows if "summary" in row}
    expected = {"advance": [2, 2], "advance, N-1 kept": [2, 2], "its own, checkpoint": [4, 4]}
    assert equal == (expected if spoilt else {**expected, "its own, CUDA IPC": [4, 4]}), said
    compared = [row["equal"] for row in rows if "equal" in row and "summary" not in row]
    assert compared.count(True) >= 9 and (False in compared) == spoilt, said
    assert [row["GiB"] for row in rows if "memory after" in str(row.get("what"))] == [0.0, 0.0]
    assert house.sets() == []


def test_an_engine_of_two_ranks(house: House, tmp_path: Path) -> None:
    """A trainer that is killed when one of two versions is sealed moves no rank."""
    said, rows, status = ran(house, tmp_path, "advance-1B-2", False)
    assert status == 0, said + (tmp_path / "engines.log").read_text()
    assert said.count("the trainer is killed: sealing, between two ranks, equal True") == 2, said
    assert [row["equal"] for row in rows if "summary" in row] == [[2, 2], [4, 4], [2, 2]], said
    assert house.sets() == []
