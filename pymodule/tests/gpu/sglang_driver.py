"""An sglang engine through cycles of release and resume: what it frees, how long that takes,
whether tokens and weights are as before. Run by test_sglang.py; by hand where sglang is installed,
with whatever torch_memory_saver the path finds:

    PYTHONPATH=$PWD python sglang_driver.py --memory 0.5

Weights are made up, and no file is fetched. The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import importlib.util
import json
import mmap
import os
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import llama
from driving import offline, say, sglang_engine

KV, WEIGHTS, GRAPHS = "kv_cache", "weights", "cuda_graph"
NORM = "model.norm.weight"


def tells_of_mistakes() -> bool:
    """Whether this sglang raises for a second release (0.5.16 does not)."""
    found = importlib.util.find_spec("sglang")
    assert found and found.origin
    at = Path(found.origin).parent / "srt/managers/scheduler_components/weight_updater.py"
    return at.exists() and "not currently released" in at.read_text()


def tms_serves() -> bool:
    """Whether a process of the engine has libtms.so."""
    import psutil

    children = psutil.Process().children(recursive=True)
    return any("libtms.so" in Path(f"/proc/{child.pid}/maps").read_text() for child in children)


def limits() -> dict[str, float]:
    """Seconds that this machine takes for contents of the weights' size, one step at a time.

    The best of three: a virtual machine's first use of its memory takes long.
    """
    import torch

    size = int(llama.WEIGHTS * 2**30) >> 21 << 21
    there = torch.ones(size, dtype=torch.uint8, device="cuda")
    runtime: Any = torch.cuda.cudart()
    found: dict[str, float] = {}
    begun = 0.0

    def lap(name: str = "") -> None:
        nonlocal begun
        torch.cuda.synchronize()
        now = time.perf_counter()
        if name:
            found[name] = min(found.get(name, 1e9), now - begun)
        begun = now

    for _ in range(3):
        mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # huge pages
        mapping.madvise(mmap.MADV_HUGEPAGE)
        here = torch.frombuffer(mapping, dtype=torch.uint8)
        lap()
        here[::4096].fill_(1)
        lap("pages made")
        runtime.cudaHostRegister(here.data_ptr(), size, 0)
        lap("pinned")
        assert here.is_pinned()
        here.copy_(there)
        lap("to the host")
        there.copy_(here)
        lap("to the device")
        runtime.cudaHostUnregister(here.data_ptr())
        lap("unpinned")
        del here
        mapping.close()
    return found


class Engine:
    def __init__(self, asked: argparse.Namespace) -> None:
        import torch

        self.torch, self.gpus = torch, asked.tp
        torch.zeros(1, device="cuda")
        begun = time.perf_counter()
        self.engine = sglang_engine(
            mem_fraction_static=asked.memory,
            max_total_tokens=asked.tokens,
            tp_size=asked.tp,
            enable_weights_cpu_backup=True,
        )
        self.start_s = time.perf_counter() - begun
        self.manager = self.engine.tokenizer_manager
        self.phases: list[dict[str, Any]] = []
        self._prompts = llama.prompts()
        self._sampling = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}
        self.generate()  # the first use makes things, too
        self.tokens = self.generate()
        self.sums = self.checksum()

    def run(self, what: Coroutine[Any, Any, Any]) -> Any:
        return self.engine.loop.run_until_complete(what)

    def used(self) -> int:
        """Bytes in use on the devices, by anyone. The first of two ranks answers for both."""
        last = -1
        while True:
            figures = [self.torch.cuda.mem_get_info(device) for device in range(self.gpus)]
            now = sum(total - free for free, total in figures)
            if now == last or self.gpus == 1:
                return now
            last = now
            time.sleep(0.2)  # saving the weights' contents takes half of that

    def generate(self) -> list[list[int]]:
        """One prompt at a time: the same shapes each time, so that tokens repeat exactly."""
        return [
            list(
                self.engine.generate(input_ids=prompt, sampling_params=self._sampling)["output_ids"]
            )
            for prompt in self._prompts
        ]

    def checksum(self) -> Any:
        """sglang's own checksum of every weight and buffer."""
        from sglang.srt.managers.io_struct import CheckWeightsReqInput

        asked = CheckWeightsReqInput(action="checksum")
        right, message, _, total = self.run(self.manager.check_weights(asked, None))
        assert right, message
        return total

    def release(self, tags: list[str] | None) -> float:
        begun = time.perf_counter()
        self.engine.release_memory_occupation(**({"tags": tags} if tags else {}))
        return time.perf_counter() - begun

    def resume(self, tags: list[str] | None) -> float:
        begun = time.perf_counter()
        self.engine.resume_memory_occupation(**({"tags": tags} if tags else {}))
        return time.perf_counter() - begun

    def cycle(
        self,
        name: str,
        releases: list[list[str] | None],
        resumes: list[list[str] | None],
        check: bool = True,
        nap: float = 0,
    ) -> None:
        """Takes a list of tags for each call, None for all. `nap`: seconds released."""
        phase: dict[str, Any] = {"name": name, "before": self.used()}
        phase["release_s"] = sum(self.release(tags) for tags in releases)
        phase["released"] = self.used()
        time.sleep(nap)
        phase["resume_s"] = sum(self.resume(tags) for tags in resumes)
        phase["after"] = self.used()
        if check:
            phase["tokens"] = self.generate() == self.tokens
            phase["weights"] = self.checksum() == self.sums
        self.phases.append(phase)
        print(json.dumps({"phase": phase}), flush=True)  # a time limit may come before the end
        say(name, {k: round(v, 4) if isinstance(v, float) else v for k, v in phase.items()})

    def write(self, value: float) -> None:
        """Writes a weight from this process, which the engine's process opens by CUDA IPC."""
        tensor = self.torch.full((llama.CONFIG["hidden_size"],), value, dtype=self.torch.bfloat16)
        right, message = self.engine.update_weights_from_tensor([(NORM, tensor.cuda())])
        assert right, message

    def updated(self, value: float) -> list[list[int]]:
        """As trainers do it: weights come back, are written, and the cache comes back."""
        self.release([KV, WEIGHTS])
        self.resume([WEIGHTS])
        self.write(value)
        self.resume([KV])
        return self.generate()

    async def _disturbed(self, number: int, tags: list[str]) -> bool:
        """Running requests are aborted, then memory goes and comes."""
        from sglang.srt.managers import io_struct

        more = {**self._sampling, "max_new_tokens": 512}
        asked = [
            asyncio.ensure_future(
                self.engine.async_generate(input_ids=prompt, sampling_params=more)
            )
            for prompt in self._prompts[: 1 + number % 3]
        ]
        await asyncio.sleep(0.02 + 0.001 * (number % 50))
        self.manager.abort_request(abort_all=True)
        answers = await asyncio.gather(*asked)
        await self.manager.release_memory_occupation(
            io_struct.ReleaseMemoryOccupationReqInput(tags=tags), None
        )
        await self.manager.resume_memory_occupation(
            io_struct.ResumeMemoryOccupationReqInput(tags=tags), None
        )
        lengths = [len(answer["output_ids"]) for answer in answers]
        say("disturbed", number, lengths)
        return max(lengths) < 512

    def disturbed(self, number: int, tags: list[str]) -> bool:
        return bool(self.run(self._disturbed(number, tags)))


def drive(engine: Engine, asked: argparse.Namespace, result: dict[str, Any]) -> None:
    everything: list[list[str] | None] = [None]
    engine.cycle("first", everything, everything)
    for i in range(5):
        engine.cycle(f"later {i}", everything, everything, check=i == 4, nap=1)
    for i in range(3):  # while the driver scrubs freed memory
        engine.cycle(f"at once {i}", everything, everything, check=False)
    if asked.short:
        return
    tags = [KV, WEIGHTS] + ([GRAPHS] if asked.graphs else [])
    for tag in tags:
        engine.cycle(f"{tag} alone", [[tag]], [[tag]])
    for n in range(len(tags)):
        out = tags[n:] + tags[:n]
        engine.cycle(f"{out}, back in reverse", [[t] for t in out], [[t] for t in out[::-1]])
        engine.cycle(f"{out}, back in order", [[t] for t in out], [[t] for t in out])
    engine.cycle("in one call", [tags], [tags])
    if tells_of_mistakes():
        result["mistakes"] = mistakes(engine)
    else:  # the scheduler pauses twice, and must live
        engine.cycle("released twice", [[KV], [KV]], [[KV]])
    engine.cycle("after that", everything, everything)
    before = engine.used()
    result["cycles"] = 0
    for i in range(asked.cycles):
        if not engine.disturbed(i, tags if i % 2 else [KV]):
            raise AssertionError(f"cycle {i}: no request was running")
        if i % 10 == 9:
            assert engine.generate() == engine.tokens, f"cycle {i}"
        result["cycles"] += 1
    result["grown"] = engine.used() - before
    engine.cycle("after requests", everything, everything)
    engine.write(1.0)
    first = engine.generate()
    second = engine.updated(-1.0)
    result["updated"] = [second != first, engine.updated(1.0) == first]


def mistakes(engine: Engine) -> dict[str, str]:
    said = {}
    for name, call in {
        "resume without release": lambda: engine.resume([KV]),
        "release twice": lambda: (engine.release([KV]), engine.release([KV])),
    }.items():
        try:
            call()
        except RuntimeError as error:
            said[name] = str(error)
    engine.resume([KV])
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=float, default=0.6, help="part of the device")
    parser.add_argument("--tokens", type=int, help="of the KV cache, instead")
    parser.add_argument("--graphs", action="store_true", help="captured graphs are released too")
    parser.add_argument("--tp", type=int, default=1, help="GPUs")
    parser.add_argument("--cycles", type=int, default=100, help="beside running requests")
    parser.add_argument("--short", action="store_true", help="only everything at once")
    parser.add_argument("--limits", action="store_true", help="measure this machine's first")
    parser.add_argument("--timeout", type=int, default=300, help="seconds")
    asked = parser.parse_args()
    offline()
    if asked.graphs:
        os.environ["SGLANG_MEMORY_SAVER_CUDA_GRAPH"] = "1"
    import sglang
    import torch

    import torch_memory_saver

    faulthandler.dump_traceback_later(asked.timeout, exit=True)
    result: dict[str, Any] = {
        "ok": False,
        "sglang": sglang.__version__,
        "saver": str(Path(torch_memory_saver.__file__).parent),
    }
    if asked.limits:
        result["limits"] = limits()
        torch.cuda.empty_cache()
    say("begins")
    engine = Engine(asked)
    result["start_s"] = engine.start_s
    result["tms"] = tms_serves()
    say("up", result)
    try:
        result["distinct"] = len({token for answer in engine.tokens for token in answer})
        result["repeatable"] = engine.generate() == engine.tokens
        drive(engine, asked, result)
        result["ok"] = True
    finally:
        result["phases"] = engine.phases
        print(json.dumps(result), flush=True)
        engine.engine.shutdown()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
