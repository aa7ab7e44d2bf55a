"""What scripts/bench/snapshot.sh measures, in the folder that it is given.

Prints a table. snapshot.json, table.md and logs.tar.gz go to $OUT, or to the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
TMS = str(ROOT / "build/bin/tms")
DRIVER = ROOT / "pymodule/tests/gpu/programs/checkpoint.py"
GIB = 1 << 30
BEGAN = time.monotonic()
WORK = Path(sys.argv[1])
OUT = Path(os.environ.get("OUT", str(WORK)))
COUNT = int(os.environ.get("COUNT", "20"))
UNTIL = float(os.environ.get("UNTIL", "1e9"))
ALL = "disk torch-8 copied nvml cupy jax copies contents training driver torch-16"
ONLY = os.environ.get("ONLY", ALL).split()
SNAPSHOTS = WORK / "snapshots"
LIMIT = float(os.environ.get("LIMIT", "120"))  # seconds of one command, or of a wait for a step
LONGEST = float(os.environ.get("LONGEST", "150"))  # seconds of all of a row
CHANGES = ("torch-8", "torch-16")  # programs that change 1% before their second snapshot
FORCE = ["--force"] if os.environ.get("FORCE") else []  # on the simulator without libtms_reach.so


COLUMNS = (
    "program",
    "own start",
    "snapshot",
    "stands still",
    "of it pause, dump, goes on",
    "second one, MB new",
    "`--stop`",
    "restore to the next step",
    "cold",
    "until check, process, contents; resume",
    "MB written, host memory",
    "restores, wrong",
)


class Failed(Exception):
    """A command or a program did not do what it had to."""


def end_row(*_: object) -> None:
    """Ends a row that takes too long, also where it waits without a limit of its own."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT)  # what ends its programs may hang, too
    raise Failed(f"the row took more than {LONGEST:.0f} s")


def say(*words: object) -> None:
    print(f"[{time.monotonic() - BEGAN:6.1f}]", *words, flush=True)


def run(*command: str, program_stdin: Any = subprocess.DEVNULL) -> tuple[dict[str, Any], float]:
    """Runs tms with --json, and returns what it says and how long it took."""
    # A file: a pipe would stay open in a restored program.
    with open(WORK / "said", "w+") as said, open(WORK / "errors", "w+") as errors:
        begin = time.time()
        done = subprocess.run(
            [TMS, *command, "--json"],
            stdin=program_stdin,
            stdout=said,
            stderr=errors,
            timeout=LIMIT,
        )
        took = time.time() - begin
        errors.seek(0)
        said.seek(0)
        words, text = errors.read(), said.read()
    if done.returncode:
        raise Failed(f"tms {' '.join(command)}: {words}{text}")
    if words:
        say("   ", words.strip())
    return json.loads(text.splitlines()[0]), took


def reap() -> None:
    """Waits for children that have ended, so that their numbers are free."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


class Program:
    """A program that writes lines into a file."""

    def __init__(self, name: str, command: list[str], tms: bool = True) -> None:
        self.name, self.log = name, WORK / f"{name}.lines"
        self.log.unlink(missing_ok=True)
        self.directory = SNAPSHOTS / name
        begin = time.time()
        with open(
            WORK / f"{name}.log", "ab"
        ) as output:  # a program that is restored needs it to append
            self.pid = subprocess.Popen(
                [TMS, "run", "--", *command] if tms else command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ).pid
        try:
            self.started = self.after(begin) - begin
        except Failed:
            self.end()
            raise

    def lines(self) -> list[tuple[float, int, str, str]]:
        text = self.log.read_text() if self.log.exists() else ""
        parts = (line.split() for line in text.splitlines(keepends=True) if line.endswith("\n"))
        return [(float(at), int(step), space, result) for at, step, space, result in parts]

    def after(self, moment: float, space: str = "") -> float:
        """When the first line after a moment was written."""
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            for at, _, of, _ in self.lines()[-400:]:
                if at > moment and space in ("", of):
                    return at
            reap()
            if not Path(f"/proc/{self.pid}").exists():
                break
            time.sleep(0.002)
        raise Failed(f"{self.name} made no step: {(WORK / f'{self.name}.log').read_text()[-600:]}")

    def change(self) -> None:
        """Has it change 1% of its memory, and waits until it has."""
        begin = time.time()
        os.kill(self.pid, signal.SIGUSR1)
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            if any(at > begin and result == "changed" for at, *_, result in self.lines()[-400:]):
                return
            time.sleep(0.002)
        raise Failed(f"{self.name} does not change its memory")

    def gap(self, since: float) -> float:
        """The longest time between two lines since a moment."""
        times = [at for at, *_ in self.lines() if at > since]
        return max((b - a for a, b in zip(times, times[1:])), default=0)

    def wrong(self) -> int:
        return sum(result == "WRONG" for *_, result in self.lines())

    def gone(self) -> None:
        until = time.monotonic() + LIMIT
        while time.monotonic() < until:
            reap()
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.005)
        raise Failed(f"{self.name} does not end")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.gone()

    def snapshot(self, *arguments: str) -> tuple[dict[str, Any], float]:
        return run("snapshot", str(self.pid), str(self.directory), *FORCE, *arguments)

    def restore(self) -> tuple[dict[str, Any], float]:
        """Restores it, and returns what tms says and the time until the next step."""
        begin = time.time()
        said, _ = run("restore", str(self.directory))
        self.pid = said["processes"][0]
        return said, self.after(begin) - begin


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    return (
        f"{middle:.1f} ({min(values):.1f} to {max(values):.1f})"
        if len(values) > 1
        else f"{middle:.1f}"
    )


def drop_caches() -> None:
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError as error:
        say("the page cache stays:", error)


def program(name: str, command: list[str], row: dict[str, Any]) -> None:
    """Snapshots and restores of one program at random moments."""
    p = Program(name, command)
    try:
        time.sleep(random.uniform(0.1, 1))
        begin = time.time()
        first, took = p.snapshot()
        p.after(time.time())
        row["start"], row["snapshot"], row["first"] = p.started, took, first
        row["stands still"] = p.gap(begin)
        say(
            name,
            f"started in {p.started:.1f} s; snapshot {took:.1f} s,",
            f"stood still {row['stands still']:.2f} s",
        )
        say(
            "   ",
            {key: round(value, 2) for key, value in first.items() if key.endswith("_seconds")},
        )
        if name in CHANGES:
            p.change()
        begin = time.time()
        row["second"], row["second took"] = p.snapshot()
        p.after(time.time())
        row["stands still, second"] = p.gap(begin)
        new, changed = written(row["second"]), ", 1% changed" if name in CHANGES else ""
        say(f"    second snapshot{changed}: {new:.0f} MB, {new / written(first):.1%} of the first")
        stops: list[dict[str, Any]] = row["stops"]
        restores: list[dict[str, Any]] = row["restores"]
        for number in range(COUNT):
            time.sleep(random.uniform(0.05, 0.6))
            stopped, took = p.snapshot("--stop")
            stops.append({**stopped, "took": took})
            p.gone()
            subprocess.run(
                [TMS, "snapshots", "prune", str(p.directory), "--keep", "1"],
                stdout=subprocess.DEVNULL,
                timeout=LIMIT,
                check=True,
            )
            cold = number == 0
            if cold:
                drop_caches()
            restored, took = p.restore()
            restores.append({**restored, "took": took, "cold": cold})
            row["wrong"], row["steps"] = p.wrong(), len(p.lines())
            if p.wrong():
                words = (WORK / f"{name}.log").read_text()[-2000:]
                raise Failed(f"{p.wrong()} results are wrong after {number + 1} restores: {words}")
            say(
                f"    --stop {stopped['seconds']:.2f} s, {'cold ' if cold else ''}restore",
                f"to the next step {took:.2f} s:",
                {
                    key: round(restored[f"{key}_seconds"], 2)
                    for key in ("check", "process", "contents", "resume")
                },
            )
            if time.monotonic() - BEGAN > UNTIL:
                break
    finally:
        p.end()
        if "copies" not in ONLY or name not in ("cupy", "copied"):
            shutil.rmtree(p.directory, ignore_errors=True)


def copies(row: dict[str, Any]) -> None:
    """Two copies of CuPy's program, or of copied, from the snapshot that was left."""
    name = "cupy" if (SNAPSHOTS / "cupy").exists() else "copied"
    kept, gpus = SNAPSHOTS / name, os.environ.get("GPUS", "")
    begin = time.time()
    with open(WORK / "said", "w+") as said, open(WORK / "errors", "w+") as errors:
        command = [
            TMS,
            "restore",
            str(kept),
            "-n",
            "2",
            "--json",
            *(["--to", gpus] if gpus else []),
        ]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, timeout=LIMIT
        )
        said.seek(0)
        errors.seek(0)
        text, words = said.read(), errors.read()
    all_of_them = [json.loads(line) for line in text.splitlines()]
    try:
        if done.returncode:
            raise Failed(f"tms restore -n 2: {words}{text}")
        p = Program.__new__(Program)
        p.name, p.log, p.pid = name, WORK / f"{name}.lines", all_of_them[0]["processes"][0]
        spaces = [str(os.stat(f"/proc/{one['processes'][0]}/ns/pid").st_ino) for one in all_of_them]
        took = [p.after(begin, space) - begin for space in spaces]
        time.sleep(1)
        steps = [sum(of == space for _, _, of, _ in p.lines()) for space in spaces]
        say(
            f"two copies: the next steps after {took[0]:.2f} and {took[1]:.2f} s,",
            f"then {steps} steps, {p.wrong()} wrong",
        )
        if p.wrong() or len(set(spaces)) < 2:
            raise Failed(f"two copies: {p.wrong()} wrong results, PID namespaces {spaces}")
        row.update(took=took, steps=steps, copies=all_of_them)
    finally:
        for one in all_of_them:
            if one.get("init"):
                os.kill(one["init"], signal.SIGKILL)
        reap()


def contents(row: dict[str, Any]) -> None:
    """A lot of contents and little else, from the disk and from the page cache."""
    size = int(os.environ.get("CONTENTS", "16384"))  # MiB
    p = Program("contents", [str(WORK / "copied"), str(WORK / "contents.lines"), str(size)])
    text = Path("/proc/meminfo").read_text()
    available = int(text.split("MemAvailable:")[1].split()[0]) << 10
    if available < 3.2 * (size << 20):
        say(f"    {available / GIB:.0f} GiB are available: too few for the page cache")
    try:
        row["first"], row["took"] = p.snapshot("--stop")
        p.gone()
        bytes_ = row["first"]["read"]
        say(
            f"contents of {bytes_ / 1e9:.1f} GB: {row['took']:.1f} s to the disk,",
            f"{bytes_ / 1e9 / row['first']['blocks_seconds']:.2f} GB/s in blocks",
        )
        row["restores"] = []
        for number in range(3):
            if number == 0:
                drop_caches()
            said, took = p.restore()
            contents = said["contents_seconds"] - said["check_seconds"]
            row["restores"].append({**said, "took": took, "cold": number == 0})
            say(
                f"    {'cold' if number == 0 else 'page cache'}: contents {contents:.2f} s,",
                f"{bytes_ / 1e9 / contents:.2f} GB/s; all {took:.2f} s, of it process",
                f"{said['process_seconds']:.2f}, resume {said['resume_seconds']:.2f}: beyond the",
                f"process {took - said['process_seconds']:.2f}; {p.wrong()} wrong",
            )
            p.end()
        if p.wrong():
            raise Failed(f"{p.wrong()} results are wrong")
    finally:
        p.end()
        shutil.rmtree(p.directory, ignore_errors=True)


STATE = """
import ctypes, sys
driver, state = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(-1)
begun = driver.cuInit(0)
code = driver.cuCheckpointProcessGetState(int(sys.argv[1]), ctypes.byref(state))
print(begun, code, state.value)
"""


def nvml(row: dict[str, Any]) -> None:
    """A program that uses NVML and not CUDA: what the driver says of it, and a snapshot of it."""
    p = Program(
        "nvml", [sys.executable, str(HERE / "program.py"), "nvml", str(WORK / "nvml.lines")]
    )
    try:
        asked = subprocess.run(
            [sys.executable, "-c", STATE, str(p.pid)], capture_output=True, text=True, timeout=LIMIT
        )
        row["state"] = (asked.stdout + asked.stderr[-300:]).strip()
        threads = len(os.listdir(f"/proc/{p.pid}/task"))
        row["threads"], row["files"] = threads, driver_files(p.pid)
        say(
            "NVML alone: cuInit, cuCheckpointProcessGetState and its state:",
            row["state"] + ";",
            f"{threads} threads, {row['files']}",
        )
        row["first"], row["took"] = p.snapshot()
        p.after(time.time())
        row["second"], _ = p.snapshot("--stop")
        p.gone()
        row["restore"], row["back"] = p.restore()
        row["wrong"] = p.wrong()
        say(f"    snapshot {row['took']:.1f} s, restore {row['back']:.1f} s, {p.wrong()} wrong")
        if p.wrong():
            raise Failed(f"{p.wrong()} answers of NVML are others")
    finally:
        p.end()


def driver_files(pid: int) -> list[str]:
    links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
    return sorted({link for link in links if link.startswith("/dev/nvidia")})


def training(row: dict[str, Any]) -> None:
    """A training that is killed, and goes on from its last snapshot to the same losses."""
    command = [sys.executable, str(HERE / "program.py"), "training"]
    undisturbed = Program("undisturbed", [*command, str(WORK / "undisturbed.lines")], tms=False)
    try:
        p = Program("training", [*command, str(WORK / "training.lines")])
    except Failed:
        undisturbed.end()
        raise
    with open(WORK / "every.log", "wb") as log:
        again = ["--every", "2s", "--keep", "2", *FORCE]
        every = subprocess.Popen(
            [TMS, "snapshot", str(p.pid), str(p.directory), *again], stdout=log, stderr=log
        )
    try:
        until = time.monotonic() + LIMIT
        while len(list(p.directory.glob("*Z-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(random.uniform(0.2, 2))
        os.kill(p.pid, signal.SIGKILL)
        p.gone()
        every.wait(timeout=LIMIT)
        said, took = p.restore()
        while (
            not p.lines() or p.lines()[-1][1] < int(os.environ.get("STEPS", "600")) - 1
        ) and time.monotonic() < until:
            reap()
            time.sleep(0.05)
        undisturbed.gone()
        expected = {step: loss for _, step, _, loss in undisturbed.lines()}
        lines = p.lines()
        differ = [step for _, step, _, loss in lines if expected.get(step) != loss]
        repeated = len(lines) - len({step for _, step, *_ in lines})
        say(
            f"training: {len(lines)} steps, {repeated} of them repeated after kill -9,",
            f"{len(differ)} losses differ; the next step after {took:.1f} s",
        )
        if differ or not repeated or len(expected) < 2:
            raise Failed(
                f"training: the losses of steps {differ[:5]} differ, {repeated} steps were repeated"
            )
        row.update(repeated=repeated, took=took, restore=said)
        row["differ"], row["steps"] = len(differ), len(lines)
    finally:
        if every.poll() is None:
            every.kill()
            every.wait()
        p.end()
        undisturbed.end()
        shutil.rmtree(p.directory, ignore_errors=True)


def driver(row: dict[str, Any]) -> None:
    """The alternative: the driver's own checkpoint and CRIU alone, with PyTorch's program."""
    size = os.environ.get("TORCH", str(8 * GIB))
    p = Program(
        "driver",
        [sys.executable, str(HERE / "program.py"), "torch", str(WORK / "driver.lines"), size],
        tms=False,
    )
    images = SNAPSHOTS / "driver"
    images.mkdir(parents=True, exist_ok=True)
    criu = [
        os.environ.get("TMS_CRIU", "criu"),
        "--no-default-config",
        "--images-dir",
        str(images),
        "--work-dir",
        str(images),
        "--tcp-close",
        "--ext-unix-sk",
        "--link-remap",
        "--libdir",
        str(images),
        "--file-locks",
        "--manage-cgroups=ignore",
    ]
    own = None
    try:
        begin = time.time()
        with subprocess.Popen(
            [sys.executable, str(DRIVER), str(p.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as own:
            assert own.stdin and own.stdout
            out = json.loads(own.stdout.readline())
            if "refused" in out:
                raise Failed(f"the driver refuses: {out}")
            between = time.time()
            restart = [criu[0], "dump", "--tree", str(p.pid), "--network-lock", "skip", *criu[1:]]
            done = subprocess.run(
                restart, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT, text=True
            )
            if done.returncode:
                raise Failed(f"criu dump: {done.stdout[-600:]}")
            p.gone()
            took = {
                "driver out": out["out"],
                "dump": time.time() - between,
                "out": time.time() - begin,
            }
            begin = time.time()
            again = [criu[0], "restore", "--restore-detached", *criu[1:]]
            with open(WORK / "driver.criu", "w+") as said:  # a pipe would stay open in the program
                if subprocess.run(
                    again, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=LIMIT
                ).returncode:
                    raise Failed(f"criu restore: {(WORK / 'driver.criu').read_text()[-600:]}")
            took["restore"] = time.time() - begin
            own.stdin.write("\n")
            own.stdin.flush()
            back = json.loads(own.stdout.readline())
            if "refused" in back:
                raise Failed(f"the driver refuses: {back}")
            took["driver back"] = back["back"]
            took["back to the next step"] = p.after(begin) - begin
        say(
            "driver and CRIU alone:",
            {key: round(value, 2) for key, value in took.items()},
            f"{p.wrong()} wrong",
        )
        row.update(took, wrong=p.wrong())
    finally:
        if own and own.poll() is None:
            own.kill()
        p.end()
        shutil.rmtree(images, ignore_errors=True)


def disk(row: dict[str, Any]) -> None:
    """The disk's own speed: 4 files of 1 GiB at once, of random numbers."""
    folder = SNAPSHOTS / "speed"
    folder.mkdir(parents=True, exist_ok=True)
    size = int(os.environ.get("DISK", str(1 * GIB)))
    source = Path(f"/dev/shm/measure-{os.getpid()}")
    with open(source, "wb") as file:
        for _ in range(size >> 26):
            file.write(os.urandom(1 << 26))

    def all_at_once(*arguments: str) -> float:
        begin = time.monotonic()
        running = [
            subprocess.Popen(
                ["dd", "bs=2M", *(a.replace("FILE", str(folder / str(i))) for a in arguments)],
                stderr=subprocess.DEVNULL,
            )
            for i in range(4)
        ]
        if any(dd.wait(timeout=LIMIT) for dd in running):
            raise Failed(f"dd {arguments} failed")
        return 4 * size / 1e9 / (time.monotonic() - begin)

    try:
        row["writes"] = all_at_once(f"if={source}", "of=FILE", "oflag=direct")
        row["reads"] = all_at_once("if=FILE", "of=/dev/null", "iflag=direct")
        drop_caches()
        row["reads through the page cache"] = all_at_once("if=FILE", "of=/dev/null")
        say("disk, GB/s:", {key: round(value, 2) for key, value in row.items()})
    finally:
        source.unlink()
        shutil.rmtree(folder, ignore_errors=True)


def touch(size: int) -> None:
    """Has a machine that grows give memory before anything is measured."""
    if size:
        begin = time.monotonic()

        def part() -> None:
            ctypes.memset((ctypes.c_char * (size // 8))(), 1, size // 8)

        threads = [threading.Thread(target=part) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(f"touched {size / GIB:.0f} GiB in {time.monotonic() - begin:.1f} s")


def written(taken: dict[str, Any]) -> float:
    return float(taken["written"] + taken["memory"]["written"]) / 1e6


def cells(name: str, r: dict[str, Any]) -> str:
    """A line of the table, also of a program of which a later step has failed."""
    cold = [one for one in r["restores"] if one["cold"]]
    warm = [one for one in r["restores"] if not one["cold"]] or cold
    first = r["first"]
    second = f"{r['second took']:.1f}, {written(r['second']):.0f}" if "second" in r else "-"
    parts = ("check", "process", "contents", "resume")
    middle = [statistics.median([one[f"{part}_seconds"] for one in warm] or [0]) for part in parts]
    all_of_them = [
        name,
        f"{r['start']:.1f}",
        f"{r['snapshot']:.1f}",
        f"{r['stands still']:.2f}",
        ", ".join(f"{first[f'{part}_seconds']:.2f}" for part in ("pause", "dump", "goes_on")),
        second,
        spread([one["took"] for one in r["stops"]]),
        spread([one["took"] for one in warm]),
        spread([one["took"] for one in cold]),
        ", ".join(f"{value:.2f}" for value in middle),
        f"{written(first):.0f}, {first['memory']['read'] / 1e6:.0f}",
        f"{len(r['restores'])}, {r.get('wrong', '-')}" + (" FAILED" if "failed" in r else ""),
    ]
    return "| " + " | ".join(all_of_them) + " |"


def keep(results: dict[str, Any]) -> None:
    """Writes what is known by now, because the machine may be taken away."""
    (OUT / "snapshot.json").write_text(json.dumps(results, indent=1))
    lines = [cells(name, r) for name, r in results.items() if "stops" in r and "stands still" in r]
    head = ["Seconds; the bytes are MB.", "", "| " + " | ".join(COLUMNS) + " |"]
    lines = [*head, "| --- " * len(COLUMNS) + "|", *lines] if lines else []
    others = {name: r for name, r in results.items() if "stops" not in r}
    (OUT / "table.md").write_text("\n".join([*lines, "", json.dumps(others), ""]))


def keep_logs() -> None:
    """Keeps what the programs and CRIU have said."""
    with tarfile.open(OUT / "logs.tar.gz", "w:gz") as logs:
        for log in [*WORK.glob("*.log"), *Path("/tmp").glob("tms-*-*/*.log*"), WORK / "errors"]:
            if log.is_file() and log.stat().st_size < 8 << 20:
                logs.add(log, arcname=f"{log.parent.name}-{log.name}")


def main() -> None:
    ctypes.CDLL(None).prctl(
        36, 1, 0, 0, 0
    )  # PR_SET_CHILD_SUBREAPER: restored programs are children here
    where = subprocess.run(["df", "-hT", str(WORK)], capture_output=True, text=True, timeout=LIMIT)
    say("the directory's disk:", where.stdout.splitlines()[-1])
    touch(int(float(os.environ.get("TOUCH", "0")) * GIB))
    python, source = sys.executable, str(HERE / "program.py")

    def of(kind: str, name: str, size: int) -> list[str]:
        return [python, source, kind, str(WORK / f"{name}.lines"), str(size)]

    c = [str(WORK / "copied"), str(WORK / "copied.lines"), os.environ.get("COPIED", "1024")]
    programs = {
        "copied": c,
        "cupy": of("cupy", "cupy", GIB),
        "jax": of("jax", "jax", 0),
        "torch-8": of("torch", "torch-8", 8 * GIB),
        "torch-16": of("torch", "torch-16", 16 * GIB),
    }
    others = {
        "disk": disk,
        "contents": contents,
        "copies": copies,
        "nvml": nvml,
        "training": training,
        "driver": driver,
    }
    signal.signal(signal.SIGALRM, end_row)
    results: dict[str, Any] = {}
    failed = 0
    for name in ONLY:
        if time.monotonic() - BEGAN > UNTIL:
            say(name, "was not begun: the time is over")
            failed += 1
            continue
        row: dict[str, Any] = {}
        results[name] = row
        signal.setitimer(signal.ITIMER_REAL, LONGEST)
        try:
            if name in programs:
                row["stops"], row["restores"] = [], []
                program(name, programs[name], row)
            else:
                others[name](row)
        except Exception as error:  # whatever it is, the other rows come
            row["failed"] = f"{type(error).__name__}: {error}"
            say(name, "FAILED:", row["failed"])
            if not isinstance(error, (Failed, subprocess.TimeoutExpired)):
                traceback.print_exc()
            failed += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        keep(results)
    keep_logs()
    print((OUT / "table.md").read_text())
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
