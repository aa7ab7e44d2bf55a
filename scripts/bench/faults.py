"""What a pause and a resume leave behind when one driver call fails, beside others' allocators.

    scripts/bench.sh faults [--check] [tms | NAME=LIBRARY | PACKAGE==VERSION]...

It runs faults/host.c over the simulator, preloaded with tms, with the library of torch_memory_saver
or with any LIBRARY that has its C interface, and the same program for the allocator of vLLM's sleep
mode (faults/vllm.py). A run without failures counts the driver calls of the pause and of the
resume. Then each of these calls fails once, in a process of its own: calls that make memory with
"out of memory", others with "unknown error". The program makes a call that reported an error once
more, then looks at its memory, and frees it.

Without a name it takes tms, torch_memory_saver 0.0.10 and vLLM 0.33.0: the compiled files of the
wheels on the package index, kept in build/bench/wheels. Each run first shows that the bench finds
what a wrong library does wrong, and --check does nothing else. The bench fails if a failure did not
fire, or if a run without failures is not right. Needs scripts/build.sh and gcc.
"""

from __future__ import annotations

import collections
import concurrent.futures
import hashlib
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import usage  # noqa: F401
import wheels

ROOT = Path(__file__).resolve().parent.parent.parent
BUILT = ROOT / "build"
SOURCES = Path(__file__).resolve().parent / "faults"
OUT_OF_MEMORY, UNKNOWN = 2, 999
MAKES_MEMORY = {"cuMemCreate", "cuMemHostAlloc", "cuMemHostRegister", "cuMemAlloc"}
ALL = ["tms", "torch_memory_saver==0.0.10", "vllm==0.33.0"]
FILES = {
    "torch_memory_saver": ["torch_memory_saver_hook_mode_preload_cu13*.so"],
    "vllm": [
        "vllm/cumem_allocator*.so",
        "vllm/device_allocator/*.py",
        "vllm/distributed/device_communicators/cuda_wrapper.py",
    ],
}
# What vLLM's module is linked to, and does not use but for the start of C++'s streams.
UNUSED = ["libtorch.so", "libtorch_cpu.so", "libtorch_cuda.so", "libc10.so", "libc10_cuda.so"]
UNUSED += ["libnvrtc.so.13"]
STREAMS = """
extern void _ZNSt8ios_base4InitC1Ev(void *);
static char object[16];
void _ZSt21ios_base_library_initv(void) { }
__attribute__((constructor)) static void begin(void) { _ZNSt8ios_base4InitC1Ev(object); }
"""
RIGHT = "right"
ENDED = "process ended"
LOST = "contents lost"
HELD = "memory not given back"
HALF = "half paused"
OUTCOMES = [RIGHT, ENDED, LOST, HELD, HALF]


@dataclass(frozen=True)
class Fault:
    phase: str
    function: str
    nth: int

    @property
    def code(self) -> int:
        return OUT_OF_MEMORY if self.function in MAKES_MEMORY else UNKNOWN


@dataclass
class Run:
    """What a process printed, by event."""

    status: int
    events: dict[str, list[str]] = field(default_factory=dict)
    calls: list[tuple[str, str, int]] = field(default_factory=list)
    said: str = ""

    def number(self, event: str, default: int = -1) -> int:
        words = self.events.get(event)
        return int(words[0]) if words else default

    @property
    def fired(self) -> int:
        return max(self.number("fired"), self.number("ended"))

    @property
    def reported(self) -> bool:
        """Whether a pause or a resume reported an error."""
        return any(self.number(event) > 0 for event in ("pause", "resume"))

    def outcome(self, control: Run) -> str:
        """The worst of what happened: each process counts once."""
        if "done" not in self.events:
            return ENDED
        if self.number("wrong"):
            return LOST
        again = self.number("pause-again", 0) or self.number("resume-again", 0)
        more = any(self.number(e) != control.number(e) for e in ("paused", "resumed", "freed"))
        if more or again or self.number("frees-failed"):
            return HELD
        there, _, of = self.events.get("mapped", ["0", "of", "0"])
        return RIGHT if there in ("0", of) else HALF


class Subject:
    """What is preloaded or imported, and how to run the program with it."""

    def __init__(self, name: str, file: Path, command: list[str], **environment: str) -> None:
        self.name, self.file, self.command, self.environment = name, file, command, environment

    def run(self, *arguments: str) -> Run:
        others = ("TMS_", "CUDASIM_", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES")
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(others)}
        environment = {**inherited, "LD_LIBRARY_PATH": str(BUILT / "sim"), **self.environment}
        done = subprocess.run(
            [*self.command, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        run = Run(done.returncode, said=done.stderr.strip())
        for line in done.stdout.splitlines():
            event, *words = line.split()
            if event == "calls":
                run.calls.append((words[0], words[1], int(words[2])))
            else:
                run.events[event] = words
        return run

    def control(self) -> Run:
        """A run without failures, which must be right."""
        run = self.run("count", *driver_functions())
        if run.status or run.outcome(run) != RIGHT or run.reported or not run.calls:
            raise SystemExit(f"{self.name}: a run without failures is not right:\n{run}")
        if run.number("paused") >= run.number("active") or run.number("freed"):
            raise SystemExit(f"{self.name}: a run without failures does not free memory:\n{run}")
        return run

    def fail(self, fault: Fault) -> Run:
        run = self.run("fail", fault.phase, fault.function, str(fault.nth), str(fault.code))
        if run.fired != 1:
            raise SystemExit(f"{self.name}: {fault} fired {run.fired} times:\n{run}")
        return run


def driver_functions() -> list[str]:
    """What the simulator can count, and make fail."""
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", BUILT / "sim" / "libcuda.so.1"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    names = {re.sub(r"_(ptsz|ptds)$", "", s) for s in symbols if re.match(r"cu[A-Z]", s)}
    return sorted({re.sub(r"_v\d+$", "", name) for name in names})


def compiled(source: Path, *options: object) -> Path:
    out = ROOT / "build" / "bench" / source.stem
    out.parent.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", out, source, *options], check=True)
    return out


def preloaded(name: str, library: Path, **environment: str) -> Subject:
    runtime = BUILT / "sim" / "libcudart.so.13"
    host = compiled(SOURCES / "host.c", runtime, "-ldl")
    return Subject(name, library, [str(host)], LD_PRELOAD=str(library.resolve()), **environment)


def of_package(package: str) -> Subject:
    name = package.partition("==")[0]
    if name not in FILES:
        raise SystemExit(f"packages that this can take: {', '.join(FILES)}; not {name}")
    wheel = wheels.fetch(ROOT / "build" / "bench" / "wheels", package, FILES[name])
    module = next(wheel.rglob("*.so"))
    title = package.replace("==", " ").replace("vllm", "vLLM")
    if name != "vllm":
        return preloaded(title, module)
    unused = ROOT / "build" / "bench" / "unused"
    unused.mkdir(parents=True, exist_ok=True)
    source = unused / "streams.c"
    source.write_text(STREAMS)
    for library in UNUSED:
        compiled_to = ["-shared", "-fPIC", f"-Wl,-soname,{library}", "-l:libstdc++.so.6"]
        compiled(source, *compiled_to).rename(unused / library)
    command = [sys.executable, str(SOURCES / "vllm.py"), str(wheel)]
    return Subject(title, module, command, LD_LIBRARY_PATH=f"{unused}:{BUILT / 'sim'}")


def check() -> None:
    """A library that is wrong in each way is found out."""
    library = compiled(SOURCES / "wrong.c", "-shared", "-fPIC", BUILT / "sim" / "libcuda.so.1")
    for how, fault, expected in (
        ("exit", Fault("pause", "cuMemUnmap", 2), ENDED),
        ("contents", Fault("pause", "cuMemcpyDtoH", 1), LOST),
        ("memory", Fault("pause", "cuMemRelease", 1), HELD),
        ("half", Fault("pause", "cuMemUnmap", 2), HALF),
    ):
        subject = preloaded(f"wrong ({how})", library, WRONG=how)
        found = subject.fail(fault).outcome(subject.control())
        if found != expected:
            raise SystemExit(f"{subject.name} was found to be: {found}; not: {expected}")


def measure(subject: Subject) -> dict[str, object]:
    control = subject.control()
    faults = [Fault(p, f, n + 1) for p, f, count in control.calls for n in range(count)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        runs = list(pool.map(subject.fail, faults))
    outcomes = [run.outcome(control) for run in runs]
    silent = sum(o not in (RIGHT, ENDED) and not r.reported for r, o in zip(runs, outcomes))
    tally = collections.Counter(outcomes)
    cells = [str(tally[outcome]) for outcome in OUTCOMES]
    print(f"| {subject.name} | {len(faults)} | {' | '.join(cells)} | {silent} |", flush=True)
    return {
        "name": subject.name,
        "sha256": hashlib.sha256(subject.file.read_bytes()).hexdigest(),
        "silent": silent,
        "faults": [
            [fault.phase, fault.function, fault.nth, outcome, run.reported]
            for fault, run, outcome in zip(faults, runs, outcomes)
        ],
    }


def subject_of(word: str) -> Subject:
    if word == "tms":
        return preloaded("tms", BUILT / "lib" / "libtms.so")
    if "==" in word:
        return of_package(word)
    name, _, path = word.partition("=")
    return preloaded(name, Path(path))


def main() -> None:
    check()
    if sys.argv[1:] == ["--check"]:
        print("found out: a process that ends, lost contents, held memory, a half pause")
        return
    subjects = [subject_of(word) for word in sys.argv[1:] or ALL]
    print(f"| | driver calls | {' | '.join(OUTCOMES)} | wrong, and no error said |")
    print("| --- " * (len(OUTCOMES) + 3) + "|", flush=True)
    print(json.dumps([measure(subject) for subject in subjects]))


if __name__ == "__main__":
    main()
