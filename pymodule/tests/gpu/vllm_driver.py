"""A vLLM engine through cycles of sleep and wake-up: what it frees, how long it takes, whether
tokens and weights are as before. Run by test_vllm.py; by hand with a vLLM that finds the plugin:

    PYTHONPATH=$PWD python vllm_driver.py --backend tms --cache-gib 8

Weights are made up, by vLLM itself or, with --checkpoint, in a file that is reloaded after sleeps
of level 2. Nothing is fetched. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import faulthandler
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama
from driving import offline, say


@contextlib.contextmanager
def peak(found: dict[str, float]) -> Iterator[None]:
    """Puts the most device memory that is in use during the body, by anyone, into `found`. Bytes.

    "before": at its beginning. Looks every 2 ms.
    """
    import torch

    over = threading.Event()

    def used() -> int:
        free, total = torch.cuda.mem_get_info(device)
        return int(total - free)

    def look() -> None:
        while not over.wait(0.002):
            found["peak"] = max(found["peak"], used())

    device = torch.cuda.current_device()
    found["before"] = found["peak"] = used()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        found["peak"] = max(found["peak"], used())
        torch.cuda.empty_cache()
        found["after"] = used()


class Probe:
    """Methods that vLLM adds to its worker (worker_extension_cls)."""

    model_runner: Any
    loading: dict[str, float] = {}

    def probe_loading(self) -> dict[str, float]:
        """`peak` of the model's load, and its seconds."""
        return self.loading

    def probe_who(self) -> dict[str, Any]:
        backend = getattr(self, "sleep_mode_backend", None) or self._get_sleep_mode_backend()  # type: ignore[attr-defined]
        maps = Path("/proc/self/maps").read_text()
        return {"backend": type(backend).__name__, "pid": os.getpid(), "tms": "libtms.so" in maps}

    def probe_used(self) -> int:
        """Bytes in use on this worker's device, by anyone."""
        import torch

        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    def probe_sums(self) -> list[int]:
        """A sum of every weight and buffer that depends on each element's place."""
        import torch

        model, piece, sums = self.model_runner.get_model(), 1 << 22, []
        places = torch.arange(1, piece + 1, device="cuda")
        tensors = dict([*model.named_parameters(), *model.named_buffers()])
        for _, tensor in sorted(tensors.items()):
            words = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
            parts = [
                (words[at : at + piece] * places[: len(words[at : at + piece])]).sum()
                for at in range(0, len(words), piece)
            ]
            sums.append(int(torch.stack(parts).sum()))
        return sums

    def probe_load(self) -> None:
        """Writes the weights in place, as after a sleep of level 2: the loader makes them up again.

        It makes up buffers too, which the model computes.
        """
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader

        settings: Any = self.vllm_config  # type: ignore[attr-defined]
        model = self.model_runner.get_model()
        with torch.no_grad(), set_current_vllm_config(settings):
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            get_model_loader(settings.load_config).load_weights(model, settings.model_config)
            for name, buffer in model.named_buffers():
                buffer.copy_(buffers[name])

    def probe_host(self) -> int:
        """Bytes of host memory that this worker has for contents, or for copies."""
        import torch

        tags = self.probe_tags().values()
        pinned = torch.cuda.host_memory_stats()
        return int(sum(tag["backup_bytes"] for tag in tags) + pinned["allocated_bytes.current"])

    def probe_change(self, factor: float) -> None:
        """Multiplies one small weight; by a power of two nothing is rounded."""
        import torch

        with torch.no_grad():
            self.model_runner.get_model().model.norm.weight.mul_(factor)

    def probe_tags(self) -> dict[str, Any]:
        """tms's statistics of its tags, {} without tms."""
        if "tms" not in sys.modules:
            return {}
        import tms

        devices = tms.stats()["devices"] if self.probe_who()["tms"] else []
        return {tag["tag"]: dict(tag) for device in devices for tag in device["tags"]}


if __name__ == "vllm_driver":  # a worker imports it for Probe, before it loads the model
    from vllm.v1.worker import gpu_worker

    _load_model = gpu_worker.Worker.load_model

    def _watched(self: Any, *arguments: Any, **named: Any) -> None:
        with peak(Probe.loading):
            begun = time.perf_counter()
            _load_model(self, *arguments, **named)
            Probe.loading["seconds"] = time.perf_counter() - begun

    gpu_worker.Worker.load_model = _watched


LAYER, LAYERS = 128 << 20, 64


def load(backend: str, copies: float) -> dict[str, Any]:
    """Weights replaced layer by layer with slightly larger ones, as some quantizations do.

    There is room for `copies` copies of them, and no engine. Returns what `peak` found, and the
    error, if there is one.
    """
    import torch
    from vllm.device_allocator.cumem import CuMemAllocator

    from tms._private import set_settings
    from tms._vllm import Allocator

    allocator: Any = Allocator() if backend == "tms" else CuMemAllocator.get_instance()
    room = torch.cuda.mem_get_info()[0] - int(copies * LAYER * LAYERS)
    ballast = torch.empty(room, dtype=torch.uint8, device="cuda")
    set_settings(torch, "max_split_size_mb:20")  # as vLLM does while it loads
    weights: list[Any] = []
    found: dict[str, Any] = {"error": ""}
    try:
        with peak(found), allocator.use_memory_pool("weights"):
            for value in range(LAYERS):
                weights.append(torch.full((LAYER,), value, dtype=torch.uint8, device="cuda"))
            for value in range(LAYERS):
                larger = torch.zeros(LAYER + (2 << 20), dtype=torch.uint8, device="cuda")
                larger[:LAYER] = weights[value]
                weights[value] = larger
                del larger
        found["right"] = all(bool((w[:LAYER] == i).all()) for i, w in enumerate(weights))
    except RuntimeError as error:
        found["error"] = str(error)
    del ballast
    say(backend, copies, found)
    return found


class Engine:
    def __init__(self, asked: argparse.Namespace) -> None:
        from vllm import LLM, SamplingParams
        from vllm.engine.arg_utils import EngineArgs

        settings: dict[str, Any] = {}
        if asked.backend != "cumem":
            if any(field.name == "sleep_mode_backend" for field in dataclasses.fields(EngineArgs)):
                settings["sleep_mode_backend"] = asked.backend
            else:
                os.environ["TMS_VLLM"] = "1"
        self.reloads = asked.checkpoint
        self.llm: Any = LLM(
            model=llama.folder(with_weights=self.reloads),
            load_format="safetensors" if self.reloads else "dummy",
            tensor_parallel_size=asked.tp,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            seed=42,
            enable_sleep_mode=True,
            gpu_memory_utilization=0.9,
            kv_cache_memory_bytes=int(asked.cache_gib * 2**30),
            max_model_len=2048,
            max_num_seqs=16,
            enforce_eager=asked.eager,
            enable_prefix_caching=False,  # everything is computed each time
            generation_config="vllm",
            worker_extension_cls="vllm_driver.Probe",
            compilation_config={
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": [1, 2, 4],
            },
            **settings,
        )
        self._prompts = [{"prompt_token_ids": prompt} for prompt in llama.prompts()]
        self._sampling = SamplingParams(
            temperature=0.0, max_tokens=24, ignore_eos=True, detokenize=False
        )
        self.phases: list[dict[str, Any]] = []
        self.generate()  # the first use makes things, too
        self.tokens = self.generate()
        self.sums = self.ask("probe_sums")

    def ask(self, method: str, *arguments: Any) -> list[Any]:
        """What each worker answers."""
        return list(self.llm.collective_rpc(method, args=arguments))

    def used(self) -> int:
        return sum(self.ask("probe_used"))

    def generate(self) -> list[list[int]]:
        """One prompt at a time: the same shapes each time, so that tokens repeat exactly."""
        return [
            list(answer.outputs[0].token_ids)
            for prompt in self._prompts
            for answer in self.llm.generate([prompt], self._sampling, use_tqdm=False)
        ]

    def cycle(
        self, name: str, level: int, *wakes: list[str] | None, check: bool = True, nap: float = 0
    ) -> None:
        """`wakes`: the tags of each call of wake_up, None for all. `nap`: seconds asleep."""
        phase: dict[str, Any] = {"name": name, "before": self.used()}
        begun = time.perf_counter()
        self.llm.sleep(level=level)
        phase["sleep_s"] = time.perf_counter() - begun
        phase["asleep"] = self.used()
        phase["tags"], phase["host"] = self.ask("probe_tags"), sum(self.ask("probe_host"))
        time.sleep(nap)
        phase["wake_s"], phase["used"] = 0.0, []
        for tags in wakes:
            begun = time.perf_counter()
            self.llm.wake_up(tags)
            phase["wake_s"] += time.perf_counter() - begun
            phase["used"].append(self.used())
            if level == 2 and (tags is None or "weights" in tags):
                begun = time.perf_counter()
                self.ask("reload_weights" if self.reloads else "probe_load")
                phase["load_s"] = time.perf_counter() - begun
        if check:
            phase["tokens"] = self.generate() == self.tokens
            phase["weights"] = self.ask("probe_sums") == self.sums
        self.phases.append(phase)
        print(json.dumps({"phase": phase}), flush=True)  # a time limit may come before the end
        brief = {key: value for key, value in phase.items() if key != "tags"}
        say(name, {k: round(v, 4) if isinstance(v, float) else v for k, v in brief.items()})


def drive(engine: Engine, asked: argparse.Namespace) -> None:
    weights, cache = ["weights"], ["kv_cache"]
    if asked.few:
        engine.cycle("level 2", 2, None)
    engine.cycle("first", 1, None)
    for i in range(asked.later):
        engine.cycle(f"later {i}", 1, None, check=i == asked.later - 1, nap=1)
    if asked.few:
        return
    for i in range(3):  # while the driver scrubs freed memory
        engine.cycle(f"at once {i}", 1, None, check=False)
    if asked.short:
        return
    engine.cycle("weights, then cache", 1, weights, cache)
    engine.cycle("cache, then weights", 1, cache, weights)
    engine.cycle("both in one call", 1, [*weights, *cache])
    # vLLM 0.26.0 restores buffers at the first wake-up after level 2, so weights come first.
    engine.cycle("level 2, weights, then cache", 2, weights, cache)
    engine.cycle("level 2", 2, None)
    engine.cycle("level 1 after level 2", 1, None)
    engine.cycle("and later", 1, None)
    for factor in (2.0, 0.5):
        engine.ask("probe_change", factor)
        engine.cycle(f"a weight times {factor}", 1, None, check=factor < 1)


def device_used() -> int:
    """MiB in use on the first device, by anyone, without a context of this process."""
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    command = ["nvidia-smi", "-i", device, "--query-gpu=memory.used", "--format=csv,noheader"]
    return int(subprocess.run(command, check=True, capture_output=True).stdout.split()[0])


def everything(engine: Engine, tms: Path) -> dict[str, Any]:
    """The driver takes what is left of a sleeping engine's worker, and restores it."""
    pid = str(engine.ask("probe_who")[0]["pid"])
    outside = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}

    def command(*arguments: str) -> float:
        begun = time.perf_counter()
        subprocess.run([tms, *arguments, pid], env=outside, check=True, stdout=sys.stderr)
        return time.perf_counter() - begun

    found: dict[str, Any] = {"running": device_used()}
    engine.llm.sleep(level=1)
    found["asleep"] = device_used()
    found["out_s"] = command("pause", "--everything", "--force")
    found["out"] = device_used()
    found["back_s"] = command("resume")
    engine.llm.wake_up()
    found["tokens"] = engine.generate() == engine.tokens
    found["weights"] = engine.ask("probe_sums") == engine.sums
    say("everything", found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="tms", help="tms or cumem, which is vLLM's own")
    parser.add_argument("--cache-gib", type=float, default=68, help="size of each KV cache")
    parser.add_argument("--tp", type=int, default=1, help="GPUs")
    parser.add_argument("--checkpoint", action="store_true", help="weights are in a file")
    parser.add_argument("--short", action="store_true", help="only level 1, all tags at once")
    parser.add_argument("--few", action="store_true", help="level 2, then level 1: a large model")
    parser.add_argument("--later", type=int, default=5, help="cycles of level 1 after the first")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--everything", type=Path, help="the command tms: at last it takes all")
    parser.add_argument("--load", type=float, metavar="COPIES", help="only `load`, no engine")
    parser.add_argument("--after", type=Path, help="begin when this file is there")
    parser.add_argument("--timeout", type=int, default=200, help="seconds")
    asked = parser.parse_args()
    offline(
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_STREAM="ext://sys.stderr",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_HOST_IP="127.0.0.1",
    )
    result: dict[str, Any] = {"backend": asked.backend, "ok": False}
    import vllm

    result["vllm"] = vllm.__version__
    while asked.after and not asked.after.exists():
        time.sleep(0.05)
    faulthandler.dump_traceback_later(asked.timeout, exit=True)
    say("begins")
    if asked.load:
        result.update(ok=True, load=load(asked.backend, asked.load))
        print(json.dumps(result), flush=True)
        return
    if asked.everything:
        result["idle"] = device_used()
    begun = time.perf_counter()
    engine = Engine(asked)
    result["start_s"] = time.perf_counter() - begun
    result["who"] = engine.ask("probe_who")
    result["loading"] = engine.ask("probe_loading")
    say("up", result)
    try:
        result["distinct"] = len({token for answer in engine.tokens for token in answer})
        result["repeatable"] = engine.generate() == engine.tokens
        drive(engine, asked)
        if asked.everything:
            result["everything"] = everything(engine, asked.everything)
        result["ok"] = True
    finally:
        result["phases"] = engine.phases
        print(json.dumps(result), flush=True)
        engine.llm.llm_engine.engine_core.shutdown()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
