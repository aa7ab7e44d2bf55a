"""What the steps of `scripts/bench.sh engines` share: engines that serve, and notes of results."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import usage  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "pymodule" / "tests"
DRIVERS = TESTS / "gpu"
TMS = ROOT / "build" / "bin" / "tms"
GIB = 1 << 30
BEGUN = time.monotonic()

sys.path += [str(TESTS), str(DRIVERS)]
import llama  # noqa: E402, F401
import plugin  # noqa: E402


class Failure(Exception):
    """A step cannot go on."""


class Bench:
    """What the steps have in common."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.engine, self.asked, self.folder = asked.engine, asked, folder
        self.until = BEGUN + asked.until
        self.rows: list[dict[str, Any]] = []
        self.started: list[subprocess.Popen[Any]] = []
        self._lock = threading.Lock()
        self._checkpoints: dict[str, concurrent.futures.Future[Path]] = {}
        plugin.installed(folder)

    def left(self, limit: float) -> float:
        """Seconds that a step of `limit` seconds may take now."""
        return float(min(limit, self.until - time.monotonic()))

    def variables(self, model: str, gpus: str, ours: bool = True) -> dict[str, str]:
        """The environment of a driver; without `ours` it does not see the plugin."""
        inherited = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        first = [self.asked.peer] if self.engine == "sglang" and self.asked.peer else []
        own = [str(self.folder), str(ROOT / "pymodule")] if ours else []
        paths = [*first, *own, str(DRIVERS), os.environ.get("PYTHONPATH", "")]
        return {
            **inherited,
            "PYTHONPATH": ":".join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            "TMS_COMMAND": str(TMS),
            "LLAMA_SHAPE": model,
            "CUDA_VISIBLE_DEVICES": gpus,
        }

    def start(self, words: list[str], **settings: Any) -> subprocess.Popen[Any]:
        """A program in a session of its own, which ends at the latest with this one."""
        settings.setdefault("stdin", subprocess.DEVNULL)
        process = subprocess.Popen(words, start_new_session=True, **settings)
        self.started.append(process)
        return process

    def checkpoint(self, model: str) -> Path:
        return self._checkpoints[model].result(max(1, self.left(1e9)))

    def make_checkpoints(self, models: set[str], pool: concurrent.futures.Executor) -> None:
        """Begins to write them, beside the first steps."""
        for model in models:
            self._checkpoints[model] = pool.submit(self._make_checkpoint, model)

    def _make_checkpoint(self, model: str) -> Path:
        code = "import llama; print(llama.folder(with_weights=True))"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**self.variables(model, ""), "TMPDIR": self.asked.models},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return Path(done.stdout.strip())

    def remove_checkpoints(self) -> None:
        for made in self._checkpoints.values():
            with contextlib.suppress(Exception):
                shutil.rmtree(made.result())

    def note(self, **row: Any) -> None:
        """Prints a row's beginning; all that was found so far can be read in $OUT."""
        with self._lock:
            row["at"] = round(time.monotonic() - BEGUN, 1)
            self.rows.append(row)
            words = ", ".join(f"{key} {shown(value)}" for key, value in row.items())
            print(words[:400], flush=True)
            out = self.asked.out / "engines.json"
            out.write_text(json.dumps({"engine": self.engine, "rows": self.rows}, indent=1))


def in_use(gpus: str) -> list[int]:
    """MiB of each GPU that are in use, by anyone."""
    words = ["nvidia-smi", "-i", gpus, "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(mib) for mib in subprocess.check_output(words, text=True).split()]


def await_empty(gpus: str) -> None:
    """Waits until the engine before has left its GPUs."""
    end = time.monotonic() + 20
    while max(in_use(gpus)) > 2048 and time.monotonic() < end:
        time.sleep(0.2)


def command(*words: object, timeout: float = 120) -> str:
    """What tms says; fails with its error."""
    done = subprocess.run(
        [str(TMS), *map(str, words)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=max(1, timeout),
        check=False,
    )
    if done.returncode:
        raise Failure(f"tms {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def end(process: subprocess.Popen[Any]) -> None:
    """Kills a program with all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class Served:
    """An engine that answers at a port; `seconds` from its start to its first tokens."""

    def __init__(
        self, bench: Bench, name: str, model: str, gpus: str, *words: object, run: bool = False,
        **variables: str,
    ) -> None:  # fmt: skip
        self.bench, self.port = bench, free_port()
        self.log = bench.folder / f"{name}.log"
        begun = time.perf_counter()
        driver = str(DRIVERS / f"{bench.engine}_kept_driver.py")
        started = [sys.executable, driver, *map(str, words), "--port", str(self.port)]
        prefix = [str(TMS), "run", "--backup", "sparse", "--"] if run else []
        with self.log.open("a") as log:
            self.process = bench.start(
                [*prefix, *started, "--cache-gib", "4"],
                env={**bench.variables(model, gpus), **variables},
                stdout=log,
                stderr=log,
            )
        self.await_answer("token", 150)
        self.seconds = time.perf_counter() - begun

    def ask(self, word: str, timeout: float = 60) -> dict[str, Any]:
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout) as connection,
            connection.makefile("rw") as stream,
        ):
            print(word, file=stream, flush=True)
            line = stream.readline()
        if not line:
            raise Failure(f"no answer to {word}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def tokens(self) -> Any:
        return self.ask("tokens")["tokens"]

    def await_answer(self, word: str, seconds: float) -> None:
        end_at = time.monotonic() + self.bench.left(seconds)
        while True:
            try:
                self.ask(word)
                return
            except (OSError, Failure) as error:
                if self.process.poll() is not None and word == "token":
                    raise Failure(f"it ended with {self.process.returncode}") from error
                if time.monotonic() > end_at:
                    raise Failure(f"it did not answer: {error}") from error
                time.sleep(0.02)

    def loading(self) -> float | None:
        """Seconds of the model's load, as its first line says."""
        for line in self.log.read_text(errors="replace").splitlines()[::-1]:
            if line.startswith('{"first"'):
                return rounded(json.loads(line)["loading"])
        return None

    def family(self) -> list[int]:
        """Its process and all below it."""
        pids, parents = [self.process.pid], {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        for pid in pids:
            pids += [child for child, parent in parents.items() if parent == pid]
        return pids

    def on_gpu(self) -> list[int]:
        """The processes of it that have memory by tms."""
        listed = json.loads(command("ps", "--json"))
        return [
            one["pid"]
            for one in listed
            if one["pid"] in self.family() and one["stats"]["devices"]
        ]  # fmt: skip

    def kill(self) -> None:
        end(self.process)


class Spread(list[Any]):
    """Median, least and most of some figures."""

    def __init__(self, values: list[float]) -> None:
        super().__init__(rounded(figure(values)) for figure in (statistics.median, min, max))


def rounded(value: float | None) -> float | None:
    return value if value is None else round(value, 3)


def llama_of(model: str, name: str) -> str:
    """A name of llama.py for another model than this process's."""
    return subprocess.check_output(
        [sys.executable, "-c", f"import llama; print(llama.{name})"],
        env={**os.environ, "PYTHONPATH": str(DRIVERS), "LLAMA_SHAPE": model},
        text=True,
    ).strip()


def shown(value: Any) -> str:
    if isinstance(value, Spread):
        return f"{value[0]} ({value[1]} to {value[2]})" if value[1] < value[2] else str(value[0])
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
