"""Inference engines at the sizes of real models: tms beside the engine's own way, in one run.

    scripts/bench.sh engines vllm|sglang [--until SECONDS] [--peer FOLDER] [--models FOLDER]
        [--snapshots FOLDER] [--touch GIB] STEP... [, STEP...]

The engines and PyTorch are installed; weights are made up, and nothing is fetched. A STEP is

- sleep-MODEL-tms, sleep-MODEL-own: sleeps and wake-ups, of sglang releases and resumes, by tms or
  by the engine's own way; for sglang that is torch_memory_saver, unpacked in --peer;
- kept-MODEL: starts that publish a set, attach it after a kill -9, and read the checkpoint, which
  is made in --models; the second one is paused with everything, and resumed to its next tokens;
- advance-MODEL: a trainer learns from an engine's tokens and writes its next weights, which the
  engine maps; beside it, the engine's own updates by CUDA IPC and from a checkpoint. All tokens
  are compared, and both sides are killed. advance-MODEL-2: the engine has two ranks;
- snapshot-MODEL: snapshots of the running engine with all of its processes, and restores, in
  --snapshots. TMS_CRIU names CRIU where it is not on PATH. sglang's event loop must not make an
  io_uring: sysctl kernel.io_uring_disabled=2.

MODEL is one of pymodule/tests/gpu/llama.py: 1B, 8B, 32B, 70B, which takes two GPUs. Steps behind a
comma use the next GPU, at the same time; a step of two GPUs is alone in its run. Each step has a
process, a time limit and a line in its table; one that fails does not end the others. --touch makes
the machine's host give GIB of memory before the first pause needs it, on one processor. After
SECONDS (540) whatever runs is ended. Tables are printed as they grow; $OUT, or build/gpu-results,
gets engines.json and engines.log.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import usage  # noqa: F401
from advancing import advances
from serving import (
    BEGUN,
    DRIVERS,
    GIB,
    ROOT,
    Bench,
    Failure,
    Served,
    Spread,
    await_empty,
    command,
    end,
    in_use,
    llama,
    llama_of,
    rounded,
    shown,
)
from usage import timed

CACHE = {"1B": 68, "8B": 40, "32B": 40, "70B": 2}
"""GiB of the KV cache on each GPU, for the steps of sleep; for the others it is 4."""

LIMITS = {"sleep": 180, "kept": 240, "snapshot": 240, "advance": 270}
LARGE = {"32B": 270, "70B": 300}
"""Seconds for a step."""


# Sleeps and wake-ups


class Sleep:
    """The driver of sleeps or releases, which has imported the engine when its turn comes."""

    def __init__(self, bench: Bench, name: str, model: str, way: str, gpus: str) -> None:
        self.bench, self.name, self.model, self.way, self.gpus = bench, name, model, way, gpus
        self.turn = bench.folder / f"{name}.turn"
        self.limit = LARGE.get(model, LIMITS["sleep"])
        self.begun = time.monotonic()
        self.process = bench.start(
            [sys.executable, str(DRIVERS / f"{bench.engine}_driver.py"), *self._arguments()],
            env={**bench.variables(model, gpus, way == "tms"), **self._variables()},
            stdout=subprocess.PIPE,
            stderr=(bench.folder / f"{name}.log").open("a"),
            text=True,
        )

    def _variables(self) -> dict[str, str]:
        return {"TMS_SGLANG": "1"} if self.bench.engine == "sglang" and self.way == "tms" else {}

    def _arguments(self) -> list[str]:
        small, cache = self.model == "1B", CACHE[self.model]
        if self.bench.engine == "sglang":
            tokens = (cache << 30) // int(llama_of(self.model, "TOKEN"))
            return ["--short", "--tokens", str(tokens), "--timeout", str(self.limit)]
        made = ["--backend", "tms" if self.way == "tms" else "cumem", "--cache-gib", str(cache)]
        made += ["--after", str(self.turn), "--timeout", str(self.limit)]
        if not small:
            made += ["--few", "--later", "1" if self.model == "70B" else "3"]
        elif self.way != "tms":
            made += ["--short"]
        return made + (["--tp", "2", "--eager"] if self.model == "70B" else [])

    def run(self) -> None:
        await_empty(self.gpus)
        self.turn.touch()
        begun = time.monotonic()
        try:
            out, _ = self.process.communicate(timeout=max(1, self.bench.left(self.limit)))
        except subprocess.TimeoutExpired:
            end(self.process)
            out, _ = self.process.communicate()
        finally:
            end(self.process)
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        result = lines[-1] if lines and "ok" in lines[-1] else {"ok": False}
        phases = [line["phase"] for line in lines if "phase" in line]
        took = round(time.monotonic() - begun, 1)
        self.bench.note(step=self.name, took=took, **self._figures(result, phases))
        if not result["ok"]:
            raise Failure(
                f"its driver ended with {self.process.returncode}, in the time that it had"
            )

    def _figures(self, result: dict[str, Any], phases: list[dict[str, Any]]) -> dict[str, Any]:
        out, back = (
            ("sleep_s", "wake_s") if self.bench.engine == "vllm" else ("release_s", "resume_s")
        )
        away = "asleep" if self.bench.engine == "vllm" else "released"
        kinds: dict[str, list[dict[str, Any]]] = {}
        for phase in phases:
            kinds.setdefault(phase["name"].rstrip(" 0123456789") or phase["name"], []).append(phase)
        found: dict[str, Any] = {"ok": result["ok"], "start": rounded(result.get("start_s"))}
        for kind in ("first", "later", "at once", "level"):
            for what, key in (("out", out), ("back", back), ("load", "load_s")):
                values = [phase[key] for phase in kinds.get(kind, []) if key in phase]
                if values:
                    name = f"{'level 2' if kind == 'level' else kind}: {what}"
                    found[name] = Spread(values)
        checked = [phase for phase in phases if "tokens" in phase]
        found["equal"] = [
            sum(bool(phase["tokens"] and phase["weights"]) for phase in checked),
            len(checked),
        ]
        if phases:
            found["GiB"] = [rounded(phases[0][key] / GIB) for key in ("before", away)]
            found["host GiB"] = rounded(max(phase.get("host", 0) for phase in phases) / GIB)
        return found


# Engines that serve


def kept(bench: Bench, name: str, model: str, gpus: str) -> None:
    """Starts that read, publish and attach, and a standby's way back."""
    folder = bench.checkpoint(model)
    shared = {"TMS_SGLANG_KEPT": "1"} if bench.engine == "sglang" else {}
    ours = ["tms"] if bench.engine == "vllm" else []
    own = ["safetensors"] if bench.engine == "vllm" else []

    def note(what: str, served: Served, seconds: float, equal: bool | None) -> None:
        figures = {"seconds": rounded(seconds), "load": served.loading(), "MiB": in_use(gpus)}
        bench.note(step=name, start=what, equal=equal, **figures)

    def started(words: list[str], variables: dict[str, str], run: bool = False) -> Served:
        kill()
        made = Served(bench, name, model, gpus, folder, *words, run=run, **variables)
        running.append(made)
        return made

    def kill() -> None:
        while running:
            running.pop().kill()

    running: list[Served] = []
    try:
        publisher = started(ours, shared)
        expected = publisher.tokens()
        note("publishes", publisher, publisher.seconds, None)
        killed = time.perf_counter()
        publisher.kill()
        attached = started(ours, shared, run=True)
        took = time.perf_counter() - killed
        note("attaches, after kill -9", attached, took, attached.tokens() == expected)
        pids = attached.on_gpu()
        paused = rounded(timed(lambda: command("pause", *pids, "--everything")))
        bench.note(step=name, start="paused with everything", seconds=paused, MiB=in_use(gpus))
        begun = time.perf_counter()
        command("resume", *pids)
        equal = attached.tokens() == expected
        note("a standby's resume to its tokens", attached, time.perf_counter() - begun, equal)
        reader = started(own, {})
        note("reads the checkpoint", reader, reader.seconds, reader.tokens() == expected)
    finally:
        kill()
        with contextlib.suppress(Failure, subprocess.TimeoutExpired):
            for one in json.loads(command("kept", "--json")):
                command("kept", "drop", one["name"])


# Snapshots


STEPS = ("stood", "pause", "dump", "goes_on", "blocks", "commit")
SIZES = ("contents MB", "memory MB", "images MB")
RESTORED = ("check", "process", "contents", "resume")
"""Of what tms says about a snapshot and a restore."""


class Gaps:
    """Asks all the time, and knows the longest time between two answers."""

    def __init__(self, served: Served) -> None:
        self.served, self.longest, self.answers = served, 0.0, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def _ask(self) -> None:
        last = time.perf_counter()
        while not self._over.is_set():
            with contextlib.suppress(OSError, Failure):
                self.served.ask("token")
                now = time.perf_counter()
                self.longest, last = max(self.longest, now - last), now
                self.answers += 1

    def until_answered(self) -> None:
        """Waits for two answers, of which the second was asked after this call."""
        wanted, end_at = self.answers + 2, time.monotonic() + 60
        while self.answers < wanted:
            if time.monotonic() > end_at:
                raise Failure("it has not answered since")
            time.sleep(0.01)

    def __enter__(self) -> Gaps:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def driver_files(pid: int) -> list[str]:
    """Files of NVIDIA's driver that a process has open."""
    found = set()
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.add(os.readlink(link))
    return sorted(name for name in found if name.startswith("/dev/nvidia"))


def leave_driver(served: Served) -> None:
    """Asks the processes that have files of the driver to end NVML, and to listen to tms."""
    for pid in served.family():
        caught = "0"
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            caught = status.partition("SigCgt:")[2].split()[0]
        if driver_files(pid) and int(caught, 16) >> (signal.SIGUSR2 - 1) & 1:
            os.kill(pid, signal.SIGUSR2)
    time.sleep(2)


def taken_somehow(
    bench: Bench, name: str, served: Served, taken: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """A first snapshot: of the engine as it is, else of one that has left the driver."""
    ways: dict[str, Callable[[], object]] = {
        "as it is": lambda: None,
        "NVML ended, and those with CUDA listen": lambda: leave_driver(served),
    }
    for way, prepare in ways.items():
        try:
            prepare()
            found = taken()
        except Failure as error:
            files = {pid: driver_files(pid) for pid in served.family()}
            bench.note(step=name, refused=way, words=str(error), files=str(files))
        else:
            bench.note(step=name, taken=way)
            return found
    raise Failure("no way to a snapshot was found")


def snapshots(bench: Bench, name: str, model: str, gpus: str) -> None:
    """Snapshots of an engine that goes on, then a last one, and restores from it."""
    directory = Path(bench.asked.snapshots) / name
    shutil.rmtree(directory, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=bench.folder)) / "model"
    folder.mkdir()
    config = json.loads(llama_of(model, "json.dumps(llama.CONFIG)"))
    (folder / "config.json").write_text(json.dumps(config))
    words = [folder, "dummy"] if bench.engine == "vllm" else [folder, "--load-format", "dummy"]
    # A forked process would have the driver open for its parent's NVML, and could not close it.
    method = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
    served = Served(bench, name, model, gpus, *words, run=True, **method)
    pids: list[int] = []
    try:
        expected = served.tokens()
        if served.tokens() != expected:
            raise Failure("its tokens differ from one time to the next")
        bench.note(
            step=name, what="its own start", seconds=rounded(served.seconds), GPU=in_use(gpus)
        )

        def taken(*options: str) -> dict[str, Any]:
            said = command("snapshot", served.process.pid, directory, "--json", *options)
            return dict(json.loads(said.splitlines()[-1]))

        def note(what: str, found: dict[str, Any], gap: float | None) -> None:
            """Bytes in MB; `gap` is the longest time between two answers, if it goes on."""
            figures = {"longest gap": rounded(gap)}
            figures |= {key: rounded(found[key + "_seconds"]) for key in STEPS}
            sizes = [found["written"], found["memory"]["written"], found["image_bytes"]]
            figures |= {key: round(size / 1e6, 1) for key, size in zip(SIZES, sizes)}
            equal = served.tokens() == expected if gap else None
            figures = {"seconds": rounded(found["seconds"]), **figures}
            bench.note(step=name, what=what, **figures, equal=equal)

        with Gaps(served) as gaps:
            found = taken_somehow(bench, name, served, taken)
            gaps.until_answered()
        note("first snapshot", found, gaps.longest)
        with Gaps(served) as gaps:
            found = taken()
            gaps.until_answered()
        note("second snapshot", found, gaps.longest)
        pids = served.family()
        note("last snapshot, --stop", taken("--stop"), None)
        served.process.wait(20)
        ended(pids)
        await_empty(gpus)
        for how in ("from the page cache", "again", "cold"):
            if how == "cold":
                subprocess.run(["sync"], check=True)
                Path("/proc/sys/vm/drop_caches").write_text("3")
            begun = time.perf_counter()
            said = json.loads(
                command("restore", directory, "--json", "--wait", "20s").splitlines()[-1]
            )
            pids = [*said["processes"], *(said.get("within") or []), said.get("init") or 0]
            equal = served.tokens() == expected
            figures = {"next tokens": rounded(time.perf_counter() - begun)}
            figures |= {key: rounded(said[key + "_seconds"]) for key in RESTORED}
            bench.note(step=name, what=f"restore, {how}", **figures, equal=equal)
            if not equal:
                raise Failure("the restored engine's tokens differ")
            ended(pids)
            await_empty(gpus)
    finally:
        ended(pids)
        served.kill()
        shutil.rmtree(directory, ignore_errors=True)


def ended(pids: list[int]) -> None:
    """Kills processes of a snapshot, and waits until their numbers are free."""
    pids = [pid for pid in pids if pid > 1]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end_at = time.monotonic() + 10
    while pids and time.monotonic() < end_at:
        for pid in list(pids):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            if not Path(f"/proc/{pid}").exists():
                pids.remove(pid)
        time.sleep(0.02)


# The run


def take_orphans() -> None:
    """A restored program belongs to this process, which waits for it (PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def touch(size: int) -> None:
    """Uses `size` bytes of host memory, in a process that the kernel ends first if it has none."""
    if os.fork() == 0:
        Path("/proc/self/oom_score_adj").write_text("1000")
        zeros, held = bytes(1 << 21), []
        for _ in range(size // GIB):
            held.append(mmap.mmap(-1, GIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
            held[-1].madvise(mmap.MADV_HUGEPAGE)
            for at in range(0, GIB, len(zeros)):
                held[-1][at : at + len(zeros)] = zeros
        print(f"{size // GIB} GiB touched after {time.monotonic() - BEGUN:.1f} s", flush=True)
        os._exit(0)


def parsed(words: list[str]) -> list[list[tuple[str, str, str]]]:
    """The steps of each GPU: what, the model, the way."""
    lanes: list[list[tuple[str, str, str]]] = [[]]
    for word in " ".join(words).replace(",", " , ").split():
        if word == ",":
            lanes.append([])
            continue
        what, _, rest = word.partition("-")
        model, _, way = rest.partition("-")
        ways = {"sleep": ("tms", "own"), "advance": ("", "2")}.get(what, ("",))
        if what not in LIMITS or model not in llama.SHAPES or way not in ways:
            sys.exit(
                f"engines: {word!r} is no step. A step is sleep-MODEL-tms, sleep-MODEL-own, "
                f"kept-MODEL, advance-MODEL, advance-MODEL-2 or snapshot-MODEL, and a MODEL one of "
                + ", ".join(llama.SHAPES)
            )
        lanes[-1].append((what, model, way))
    return lanes


def lane(bench: Bench, gpu: str, steps: list[tuple[str, str, str]]) -> list[str]:
    """Runs steps one after another; returns the names of those that failed."""
    failed: list[str] = []
    waiting: dict[int, Sleep] = {}

    def sleep_of(number: int) -> Sleep | None:
        if number < len(steps) and steps[number][0] == "sleep" and number not in waiting:
            _, model, way = steps[number]
            gpus = "0,1" if model == "70B" else gpu
            waiting[number] = Sleep(bench, "-".join(steps[number]), model, way, gpus)
        return waiting.get(number)

    runs: dict[str, Callable[[Bench, str, str, str], None]] = {
        "kept": kept,
        "snapshot": snapshots,
        "advance": functools.partial(advances, limit=LIMITS["advance"]),
    }
    for number, (what, model, way) in enumerate(steps):
        name = "-".join(filter(None, (what, model, way)))
        if bench.left(1e9) < 30:
            failed.append(name)
            bench.note(step=name, failed="no time is left")
            continue
        try:
            own = sleep_of(number)
            if bench.engine == "vllm" and what == "sleep":
                sleep_of(number + 1)  # imports while this one runs
            if own:
                own.run()
            else:
                runs[what](bench, name, model, "0,1" if way == "2" else gpu)
        except Exception as error:  # the next step may do better
            failed.append(name)
            bench.note(step=name, failed=f"{type(error).__name__}: {error}"[:1500])
            log = bench.folder / f"{name}.log"
            if log.exists():
                lines = log.read_text(errors="replace").splitlines()
                print("\n".join(line[:300] for line in lines[-25:]), flush=True)
    for left in waiting.values():
        end(left.process)
    return failed


@contextlib.contextmanager
def ends_in_time(bench: Bench) -> Iterator[None]:
    """Ends this process after the time that it has, with what was found."""

    def over() -> None:
        print("engines: the time is over", flush=True)
        gather(bench)
        tables(bench)
        sys.stdout.flush()
        for process in bench.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(max(1, bench.left(1e9)) + 8, over)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def gather(bench: Bench) -> None:
    """Puts the ends of all logs into $OUT."""
    with (bench.asked.out / "engines.log").open("w") as whole:
        for log in sorted(bench.folder.glob("*.log")):
            lines = log.read_text(errors="replace").splitlines()
            whole.write(f"\n==== {log.name}\n" + "\n".join(lines[-600:]) + "\n")


def tables(bench: Bench) -> None:
    """Prints what was found, as the tables of a document."""
    sleeps = [row for row in bench.rows if "equal" in row and "took" in row]
    table(sleeps, "step", turned=True)
    table([row for row in bench.rows if "start" in row and "took" not in row], "start")
    table([row for row in bench.rows if "longest gap" in row], "what")
    table([row for row in bench.rows if "summary" in row], "summary")
    table(
        [row for row in bench.rows if row["step"].startswith("advance") and "what" in row], "what"
    )
    table([row for row in bench.rows if "next tokens" in row], "what")


def table(rows: list[dict[str, Any]], first: str, turned: bool = False) -> None:
    """A line for each row, or if `turned` a column."""
    keys = [first, *dict.fromkeys(key for row in rows for key in row if key not in (first, "at"))]
    lines = [keys, *([shown(row.get(key, "")) for key in keys] for row in rows)]
    lines = [list(line) for line in zip(*lines)] if turned else lines
    if rows:
        print()
        for number, line in enumerate(lines):
            print("|", " | ".join(line), "|")
            if number == 0:
                print("|", " | ".join("---" for _ in line), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("engine", choices=["vllm", "sglang"])
    parser.add_argument("--until", type=float, default=540)
    parser.add_argument("--peer", default="", help="the unpacked wheel of torch_memory_saver")
    parser.add_argument("--models", default=tempfile.gettempdir())
    parser.add_argument("--snapshots", default=tempfile.gettempdir())
    parser.add_argument("--touch", type=int, default=0, help="GiB")
    parser.add_argument("steps", nargs="+")
    asked = parser.parse_args()
    lanes = parsed(asked.steps)
    asked.out = Path(os.environ.get("OUT", ROOT / "build" / "gpu-results"))
    asked.out.mkdir(parents=True, exist_ok=True)
    take_orphans()
    if asked.touch:
        touch(asked.touch * GIB)
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor() as pool:
        bench = Bench(asked, Path(folder))
        with ends_in_time(bench):
            bench.make_checkpoints(
                {m for one in lanes for what, m, _ in one if what in ("kept", "advance")}, pool
            )
            running = [pool.submit(lane, bench, str(i), steps) for i, steps in enumerate(lanes)]
            failed = [name for one in running for name in one.result()]
            bench.remove_checkpoints()
        gather(bench)
        tables(bench)
    print(f"\nengines: {'FAILED: ' + ', '.join(failed) if failed else 'all steps passed'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
