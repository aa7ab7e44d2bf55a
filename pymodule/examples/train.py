"""Trains, pauses in the middle, lends the GPU's memory to another process, resumes, trains on.

It runs two trainings, each in a process of its own: one that pauses, under libtms.so, and one that
knows nothing of tms, without libtms.so. Their losses must be identical. While the first is paused,
a third process, without libtms.so, uses more memory than was free before the pause.

    LD_PRELOAD=libtms.so python train.py --device gpu         with PyTorch
    LD_PRELOAD=libtms.so python train.py --device simulator   without anything

The last line of the output is a JSON object; the exit status is 0 if everything in it is true.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import shlex
import subprocess
import sys
import time
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # which PYTHONSAFEPATH leaves out

STEPS = 20
PAUSE_AFTER = 10
GiB, MiB = 1 << 30, 1 << 20


def main() -> int:
    """Runs both trainings and compares them."""
    parser = argparse.ArgumentParser(description="Training that lends its GPU memory out.")
    parser.add_argument("--device", choices=["gpu", "simulator"], required=True)
    parser.add_argument("--only", choices=["pausing", "plain"], help=argparse.SUPPRESS)
    parser.add_argument("--borrow", type=int, metavar="BYTES", help=argparse.SUPPRESS)
    python = shlex.quote(sys.executable)
    parser.add_argument("--python", default=python, help=argparse.SUPPRESS)  # in emulators
    arguments = parser.parse_args()
    if arguments.device == "simulator":
        os.environ.setdefault("CUDASIM_SHARED", f"train-{os.getpid()}")  # one device for all
    if arguments.borrow:
        borrow(arguments.device, arguments.borrow)
        return 0
    if arguments.only:
        pausing = arguments.only == "pausing"
        run(arguments.device, pausing=pausing, python=shlex.split(arguments.python))
        return 0

    print(f"training 1 of 2: {STEPS} steps, paused after step {PAUSE_AFTER}", flush=True)
    pausing = in_process(arguments.device, "pausing", dict(os.environ))
    print(f"training 2 of 2: {STEPS} steps, never paused, without libtms.so", flush=True)
    plain = in_process(arguments.device, "plain", without_libtms())

    result = {
        "device": pausing["device"],
        "simulated": arguments.device == "simulator",
        **pausing["result"],
        "losses": len(plain["losses"]),
        "losses_equal": pausing["losses"] == plain["losses"],
        "loss_first": float.fromhex(plain["losses"][0]),
        "loss_last": float.fromhex(plain["losses"][-1]),
    }
    kept = result["restored"] and result["address_kept"]
    print(
        f"contents and addresses are {'as before' if kept else 'LOST'}; "
        f"loss {result['loss_first']:.6f} -> {result['loss_last']:.6f}; the two trainings' "
        f"{STEPS} losses are {'identical' if result['losses_equal'] else 'DIFFERENT'}"
    )
    print(json.dumps(result))
    wanted = ("address_kept", "restored", "freed", "lent", "losses_equal")
    return 0 if all(result[name] for name in wanted) else 1


def without_libtms() -> dict[str, str]:
    """This process's environment, for a process that is not interposed."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def in_process(device: str, kind: str, environment: dict[str, str]) -> dict[str, Any]:
    """What `run` reports from a process of its own."""
    command = [sys.executable, __file__, "--device", device, "--only", kind]
    finished = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if finished.returncode:
        sys.exit(f"the {kind} training failed with status {finished.returncode}")
    return dict(json.loads(finished.stdout))


def run(device: str, *, pausing: bool, python: list[str]) -> None:
    """One training; its report goes to stdout as JSON."""
    region: Any = no_region
    if pausing:
        import tms

        region = tms.region
    training = importlib.import_module(f"on_{device}").Training(region)
    losses: list[str] = []
    report: dict[str, Any] = {"device": training.device, "losses": losses}
    for step in range(1, STEPS + 1):
        loss = training.step(step)
        losses.append(loss.hex())
        if step % 5 == 0:
            print(f"  step {step:2}  loss {loss:.6f}", file=sys.stderr, flush=True)
        if pausing and step == PAUSE_AFTER:
            program = [*python, __file__, "--device", device]
            report["result"] = lend(training, program)
    print(json.dumps(report))


def no_region(tag: str, backup: str | None = None) -> contextlib.AbstractContextManager[None]:
    """In place of `tms.region`, for memory that stays."""
    return contextlib.nullcontext()


def borrow(device: str, size: int) -> None:
    """The process that borrows the memory: it uses `size` bytes until its standard input ends."""
    memory = importlib.import_module(f"on_{device}").use(size)
    print("in use", flush=True)
    sys.stdin.read()
    del memory


def lend(training: Any, program: list[str]) -> dict[str, Any]:
    """Pauses the training, lets another process use its memory, and resumes it."""
    import tms

    unit, name = (GiB, "GiB") if training.free_memory() > 4 * GiB else (MiB, "MiB")

    def event(what: str, action: Any) -> tuple[Any, float]:
        before, begin = training.free_memory(), time.perf_counter()
        outcome = action()
        seconds = time.perf_counter() - begin
        print(
            f"  {what:<24}  {before / unit:>8.2f} -> {training.free_memory() / unit:.2f} {name} "
            f"free  {seconds * 1e3:.1f} ms",
            file=sys.stderr,
            flush=True,
        )
        return outcome, seconds

    training.tidy()
    addresses, contents = training.addresses(), training.contents()
    free_before = training.free_memory()
    _, pause_seconds = event("pause", tms.pause)
    freed = training.free_memory() - free_before
    size = free_before + freed // 2  # more than there was before the pause

    def take() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [*program, "--borrow", str(size)],
            env=without_libtms(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        return process, process.stdout.readline()

    before = training.free_memory()
    (borrower, said), _ = event("another process takes it", take)
    taken = before - training.free_memory()
    event("the other process ends", borrower.communicate)
    _, resume_seconds = event("resume", tms.resume)
    return {
        "address_kept": training.addresses() == addresses,
        "restored": training.contents() == contents,
        "freed": freed >= training.pausable_bytes,
        "freed_bytes": freed,
        "lent": said == "in use\n" and borrower.returncode == 0 and taken >= size > free_before,
        "lent_bytes": size,
        "free_before_bytes": free_before,
        "pause_seconds": round(pause_seconds, 6),
        "resume_seconds": round(resume_seconds, 6),
    }


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # where Python flushes what is left
        sys.exit(f"the result is lost: stdout: {error.strerror}")
    sys.exit(status)
