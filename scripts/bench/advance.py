"""New weights for an engine: remapped, copied from another process, and read from disk.

    scripts/bench.sh advance [--models 1.1B 8B] [--moves 1000] [--steps 10] [--seconds 150]

An engine decodes by a CUDA graph over weights in the shapes of a Llama model, in bf16. A trainer,
another process on the same GPU, makes the next weights. Three ways lead to the next step's result:

- advance: the trainer writes the next version of a set; the engine maps it (tms.kept);
- copy: the engine copies the trainer's tensors, by CUDA IPC handles, into its own (Tensor.copy_);
- disk: the engine copies from a file of safetensors, which is in the page cache.

"to the result" is from the moment at which the weights are complete (sealed; on the device; in the
file) to the result of the first step on them. Peaks count the whole device, by NVML, less what it
had before. Then the engine advances and goes back, and each result is compared with that of the
engine that copied the same weights. Last, each side is killed in the middle. Any difference ends
the run with status 1. Nothing else may use the GPU. Needs PyTorch, and build/ as it is, no Go.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import importlib.util
import json
import os
import pickle
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import usage  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
GiB = 1 << 30
SHAPES = {  # layers, hidden, heads' columns of q and of k and v each, intermediate, vocabulary
    "tiny": (2, 256, 256, 64, 512, 1024),
    "1.1B": (22, 2048, 2048, 256, 5632, 32000),
    "8B": (32, 4096, 4096, 1024, 14336, 128256),
}
ROWS = 8  # tokens in a step


# What both processes know of the model.


def shapes_of(model: str) -> dict[str, tuple[int, ...]]:
    layers, hidden, query, key, intermediate, vocabulary = SHAPES[model]
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocabulary, hidden)}
    for layer in range(layers):
        shapes[f"{layer}_qkv"] = (query + 2 * key, hidden)
        shapes[f"{layer}_o"] = (hidden, query)
        shapes[f"{layer}_gate_up"] = (2 * intermediate, hidden)
        shapes[f"{layer}_down"] = (hidden, intermediate)
        shapes[f"{layer}_norms"] = (2, hidden)
    return {**shapes, "head": (vocabulary, hidden)}


def bytes_of(model: str) -> int:
    total = 0
    for shape in shapes_of(model).values():
        size = 2
        for length in shape:
            size *= length
        total += size
    return total


def fill(torch: Any, tensors: dict[str, Any], version: int) -> None:
    """The weights of a version: the same in every process."""
    for number, name in enumerate(sorted(tensors)):
        generator = torch.Generator(device="cuda").manual_seed(1000 * version + number)
        tensors[name].normal_(0, 0.02, generator=generator)
    torch.cuda.synchronize()


# The engine and the trainer, which obey lines of JSON and answer by lines of JSON.


class Engine:
    def __init__(self, torch: Any, model: str, published: str, back: bool) -> None:
        """With a name it attaches or publishes a set; with "" the weights are its own."""
        self.torch, self.model, self.following = torch, model, None
        self.module = torch.nn.Module()
        fresh = not published
        if published:
            import tms

            with tms.kept(published) as kept:
                self._own(empty=kept.complete)
                if kept.complete:
                    self.following = kept.follow(self.module, back=back)
                else:
                    fill(torch, dict(self.module.named_parameters()), 1)
                    kept.publish(self.module)
                    self.following = kept.follow(back=back)
        if fresh:
            self._own(empty=False)
        torch.cuda.empty_cache()
        self.weights = dict(self.module.named_parameters())
        self.addresses = self._addresses()
        self.tokens = torch.arange(ROWS, device="cuda") * 37 % SHAPES[model][5]
        self._step()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._step()
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self._step()

    def _own(self, empty: bool) -> None:
        torch = self.torch
        for name, shape in shapes_of(self.model).items():
            device = "meta" if empty else "cuda"
            made = torch.empty(shape, dtype=torch.bfloat16, device=device)
            self.module.register_parameter(name, torch.nn.Parameter(made, requires_grad=False))

    def _addresses(self) -> list[int]:
        return [weight.data_ptr() for weight in self.weights.values()]

    def _step(self) -> Any:
        torch, weights = self.torch, self.weights
        linear = torch.nn.functional.linear
        layers, hidden, query, *_ = SHAPES[self.model]
        with torch.no_grad():
            x = weights["embed"][self.tokens]
            for layer in range(layers):
                norms = weights[f"{layer}_norms"] + 1
                y = torch.nn.functional.rms_norm(x, (hidden,)) * norms[0]
                x = x + linear(linear(y, weights[f"{layer}_qkv"])[:, :query], weights[f"{layer}_o"])
                y = torch.nn.functional.rms_norm(x, (hidden,)) * norms[1]
                gate, up = linear(y, weights[f"{layer}_gate_up"]).chunk(2, dim=1)
                x = x + linear(torch.nn.functional.silu(gate) * up, weights[f"{layer}_down"])
            logits = linear(torch.nn.functional.rms_norm(x, (hidden,)), weights["head"]).float()
            return torch.cat([logits.argmax(1).float(), logits.abs().sum(1)])

    def step(self) -> list[float]:
        self.graph.replay()
        return list(self.out.tolist())

    def sums(self) -> int:
        """Of all bits of all weights."""
        torch, total = self.torch, 0
        for weight in self.weights.values():
            total += int(weight.view(torch.int16).sum(dtype=torch.int64))
        return total

    def obey(self, what: str, argument: Any) -> Any:
        begin = time.monotonic()
        if what == "step":
            return {"result": self.step(), "seconds": time.monotonic() - begin}
        if what == "sums":
            return self.sums()
        if what in ("advance", "back"):
            version = getattr(self.following, what)()
            moved = time.monotonic()
            result = self.step()
            end = time.monotonic()
            assert self._addresses() == self.addresses
            return {"version": version, "seconds": moved - begin, "result": result, "end": end}
        if what == "moves":  # to and fro; the results of both ends are known
            results = {int(version): result for version, result in argument["results"].items()}
            seconds, wrong = [], 0
            for _ in range(argument["moves"] // 2):
                for move in (self.following.back, self.following.advance):
                    begin = time.monotonic()
                    version = move()
                    seconds.append(time.monotonic() - begin)
                    wrong += self.step() != results[version]
            wrong += self._addresses() != self.addresses
            return {"seconds": seconds, "wrong": wrong}
        if what == "forever":
            print(json.dumps("begun"), flush=True)
            while True:
                self.following.back()
                self.following.advance()
        sources = self._received(argument) if what == "copy" else self._read(argument)
        opened = time.monotonic()
        with self.torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(sources[name])
        del sources
        self.torch.cuda.synchronize()
        moved = time.monotonic()
        result = self.step()
        return {
            "opening": opened - begin,
            "seconds": moved - begin,
            "result": result,
            "end": time.monotonic(),
        }

    def _received(self, text: str) -> dict[str, Any]:
        sent = pickle.loads(base64.b64decode(text))
        return {name: rebuild(*arguments) for name, (rebuild, arguments) in sent.items()}

    def _read(self, path: str) -> dict[str, Any]:
        from safetensors.torch import load_file

        return dict(load_file(path, device="cuda"))


class Trainer:
    def __init__(self, torch: Any, model: str) -> None:
        self.torch, self.model = torch, model
        self.own: dict[str, Any] = {}

    def obey(self, what: str, argument: Any) -> Any:
        torch = self.torch
        if what == "drop":
            self.own.clear()
            torch.cuda.empty_cache()
            return None
        if what in ("next", "half"):
            import tms

            begin = time.monotonic()
            with tms.kept(argument["name"]).next() as tensors:
                made = time.monotonic()
                fill(torch, tensors, argument["version"])
                filled = time.monotonic()
                if what == "half":
                    print(json.dumps("begun"), flush=True)
                    time.sleep(1000)
            sealed = time.monotonic()
            return {"making": made - begin, "sealing": sealed - filled, "sealed": sealed}
        if not self.own:
            for name, shape in shapes_of(self.model).items():
                self.own[name] = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        fill(torch, self.own, argument["version"])
        if what == "file":
            from safetensors.torch import save_file

            save_file(self.own, argument["path"])
            return {"sealed": time.monotonic()}
        from torch.multiprocessing.reductions import reduce_tensor

        begin = time.monotonic()
        sent = {name: reduce_tensor(tensor) for name, tensor in self.own.items()}
        text = base64.b64encode(pickle.dumps(sent)).decode()
        return {"sealed": begin, "handles": text}


def serve(role: str, model: str, name: str, back: bool) -> None:
    import torch  # all processes do this at once, before the first measurement

    assert json.loads(sys.stdin.readline()) == "go"
    torch.cuda.init()
    obeys: Any = Engine(torch, model, name, back) if role == "engine" else Trainer(torch, model)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        what, argument = json.loads(line)
        try:
            answer = obeys.obey(what, argument)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


# The measurement.


class Child:
    def __init__(self, role: str, model: str, name: str = "", back: bool = False) -> None:
        words = [sys.executable, __file__, "--role", role, "--models", model, "--name", name]
        self.process = subprocess.Popen(
            [*words, *(["--back"] if back else [])],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        """Lets it use the device; `ready` waits until it does."""
        self._write("go")

    def ready(self) -> Child:
        assert self.read() == "ready"
        return self

    def _write(self, line: Any) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(line) + "\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"advance: a process has ended with {self.process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            sys.exit(f"advance: {answer['error']}")
        return answer

    def tell(self, what: str, argument: Any = None) -> None:
        self._write([what, argument])

    def ask(self, what: str, argument: Any = None) -> Any:
        self.tell(what, argument)
        return self.read()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Device:
    """The bytes that a device has in use, by NVML, and their peak."""

    class _Memory(ctypes.Structure):
        _fields_ = (*((name, ctypes.c_ulonglong) for name in ("total", "free", "used")),)

    def __init__(self, gpus: str = os.environ.get("CUDA_VISIBLE_DEVICES") or "0") -> None:
        """Of several `gpus` it is the first."""
        self._nvml, self._handle = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        index = int(gpus.split(",")[0])
        assert self._nvml.nvmlInit_v2() == 0
        assert self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self._handle)) == 0
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def used(self) -> int:
        memory = self._Memory()
        assert self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) == 0
        return int(memory.used)

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.used())
            time.sleep(0.001)

    def settles(self, least: int, what: str) -> None:
        """Waits until no more is in use."""
        until = time.monotonic() + 20
        while self.used() > least + (64 << 20):
            if time.monotonic() > until:
                wrong(f"{what}: {(self.used() - least) / GiB:.2f} GiB stay in use")
                return
            time.sleep(0.05)


FAILURES: list[str] = []


def wrong(text: str) -> None:
    FAILURES.append(text)
    print(f"WRONG: {text}", flush=True)


def command(*words: str) -> str:
    tms = ROOT / "build" / "bin" / "tms"
    return subprocess.run(
        [tms, *words], env=ENVIRONMENT, capture_output=True, text=True, check=True
    ).stdout


def middle(seconds: list[float]) -> str:
    return (
        f"{1000 * statistics.median(seconds):8.1f} ms "
        f"({1000 * min(seconds):.1f} to {1000 * max(seconds):.1f})"
    )


def remapped(
    device: Device, model: str, trainer: Child, engine: Child, steps: int, moves: int, back: bool
) -> dict[int, Any]:
    """Returns the result of the step of each version, and the sum of its bits."""
    name, size = name_of(model, back), bytes_of(model)
    engine.begin()
    engine.ready()
    idle = device.used() - size
    known = {1: [engine.ask("step")["result"], engine.ask("sums")]}
    to_result, mapping, making, sealing, device.peak = [], [], [], [], 0
    for version in range(2, steps + 2):
        wrote = trainer.ask("next", {"name": name, "version": version})
        moved = engine.ask("advance")
        if moved["version"] != version:
            wrong(f"{model}: version {moved['version']} was mapped, and not {version}")
        known[version] = [moved["result"], engine.ask("sums") if version < 4 else None]
        to_result.append(moved["end"] - wrote["sealed"])
        mapping.append(moved["seconds"])
        making.append(wrote["making"])
        sealing.append(wrote["sealing"])
    peak = (device.peak - idle) / size
    step = [engine.ask("step")["seconds"] for _ in range(10)]
    print(f"  advance{', with back' if back else '':11} to the result {middle(to_result)}")
    print(f"    of it the mapping {middle(mapping)}; a step {middle(step)}")
    print(f"    before it: making the version {middle(making)}, sealing {middle(sealing)}")
    print(f"    peak: {peak:.2f} times the weights", flush=True)
    if back:
        begin, done, took, version = time.monotonic(), 0, [], steps + 1
        while done < moves:
            part = min(100, moves - done)
            results = {one: known[one][0] for one in (version, version - 1)}
            said = engine.ask("moves", {"moves": part, "results": results})
            done, took = done + part, took + said["seconds"]
            if said["wrong"]:
                wrong(f"{model}: {said['wrong']} of {part} moves led to another result")
            version += 1
            trainer.ask("next", {"name": name, "version": version})
            known[version] = [engine.ask("advance")["result"], None]
        print(f"    {done} advances and returns: {middle(took)} each,")
        print(
            f"    all results right: {not FAILURES}, {time.monotonic() - begin:.0f} s", flush=True
        )
    engine.kill()
    command("kept", "drop", name)
    return known


def name_of(model: str, back: bool) -> str:
    return f"advance-{model}{'-back' if back else ''}"


def copied(
    device: Device,
    model: str,
    trainer: Child,
    engine: Child,
    steps: int,
    known: dict[int, Any],
    file: Path | None,
) -> None:
    """Compares each result, too."""
    size = bytes_of(model)
    engine.begin()
    engine.ready()
    idle, device.peak = device.used() - size, 0
    to_result, opening = [], []
    for version in range(2, steps + 2):
        if file:
            wrote = trainer.ask("file", {"version": version, "path": str(file)})
            trainer.ask("drop")
            wrote["sealed"] = time.monotonic()
            moved = engine.ask("disk", str(file))
        else:
            wrote = trainer.ask("share", {"version": version})
            moved = engine.ask("copy", wrote["handles"])
        to_result.append(moved["end"] - wrote["sealed"])
        opening.append(moved["opening"])
        if moved["result"] != known[version][0]:
            wrong(f"{model}: the engine that copied version {version} has another result")
        if known[version][1] is not None and engine.ask("sums") != known[version][1]:
            wrong(f"{model}: the copied version {version} has other bits")
    peak = (device.peak - idle) / size
    print(f"  {'disk' if file else 'copy':18} to the result {middle(to_result)}")
    print(f"    of it {'reading' if file else 'opening handles'} {middle(opening)}")
    print(f"    peak: {peak:.2f} times the weights", flush=True)
    engine.kill()
    trainer.ask("drop")


def killed(device: Device, model: str, trainer: Child, engine: Child, again: Child) -> None:
    name, size, before = "advance-killed", bytes_of(model), device.used()
    for one in (engine, trainer):
        one.begin()
        one.ready()
    first = engine.ask("step")["result"]
    trainer.ask("next", {"name": name, "version": 2})
    second = engine.ask("advance")["result"]
    trainer.tell("half", {"name": name, "version": 3})
    assert trainer.read() == "begun"
    held = device.used()
    trainer.kill()
    device.settles(held - size, "after the trainer was killed as it wrote")
    if engine.ask("advance")["result"] != second or engine.ask("back")["result"] != first:
        wrong("the engine has not what it had, after the trainer was killed")
    engine.ask("advance")
    engine.tell("forever")
    assert engine.read() == "begun"
    time.sleep(0.5)
    engine.kill()
    again.begin()
    again.ready()
    if again.ask("step")["result"] != second:
        wrong("the engine after the killed one has another result")
    sums = again.ask("sums")
    again.kill()
    print(
        f"  killed: the trainer as it wrote, the engine between moves; the next engine has {sums:x}"
    )
    command("kept", "drop", name)
    device.settles(before, "after all were killed, and the set dropped")


ENVIRONMENT: dict[str, str] = {}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=["1.1B", "8B"])
    parser.add_argument("--moves", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--role", choices=["engine", "trainer"])
    parser.add_argument("--name", default="")
    parser.add_argument("--back", action="store_true")
    asked = parser.parse_args()
    if asked.role:
        serve(asked.role, asked.models[0], asked.name, asked.back)
        return
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tms-advance-", dir="/tmp") as place:
        ENVIRONMENT.update(
            os.environ,
            LD_PRELOAD=str(ROOT / "build" / "lib" / "libtms.so"),
            TMS_COMMAND=str(ROOT / "build" / "bin" / "tms"),
            PYTHONPATH=str(ROOT / "pymodule"),
            XDG_RUNTIME_DIR=place,
            TMPDIR=place,
            PYTHONUNBUFFERED="1",
        )
        device = Device()
        first = asked.models[0]
        trainers = {model: Child("trainer", model) for model in asked.models}
        engines = {
            model: [
                *(Child("engine", model, name_of(model, back), back) for back in (True, False)),
                *(Child("engine", model) for _ in range(2)),
            ]
            for model in asked.models
        }
        last = Child("trainer", first)
        dies, again = (Child("engine", first, "advance-killed", True) for _ in range(2))
        for number, model in enumerate(asked.models):
            size = bytes_of(model)
            print(f"{model}: {size / GiB:.2f} GiB in {len(shapes_of(model))} tensors", flush=True)
            moves = asked.moves if number == 0 else min(asked.moves, 100)
            trainer = trainers[model]
            trainer.begin()
            trainer.ready()
            backs, advances, copies, reads = engines[model]
            known = remapped(device, model, trainer, backs, asked.steps, moves, True)
            remapped(device, model, trainer, advances, asked.steps, 0, False)
            copied(device, model, trainer, copies, asked.steps, known, None)
            if time.monotonic() - begin > asked.seconds * (0.4 if number == 0 else 0.7):
                print("  disk: left out, for lack of time")
            elif importlib.util.find_spec("safetensors") is None:
                print("  disk: left out, because there is no safetensors")
            else:
                file = Path(place) / "weights"
                copied(device, model, trainer, reads, min(2, asked.steps), known, file)
                file.unlink()
            reads.kill()
            trainer.kill()
            print(f"  ({time.monotonic() - begin:.0f} s so far)", flush=True)
        killed(device, first, last, dies, again)
    print(f"advance: {len(FAILURES)} wrong, {time.monotonic() - begin:.0f} s", flush=True)
    sys.exit(bool(FAILURES))


if __name__ == "__main__":
    main()
