"""A trainer and an sglang engine take turns on one GPU, each with (nearly) all of it.

Each round the engine generates and gives its memory up, the trainer takes its own back and makes a
step, hands the new weights over by CUDA IPC, layer by layer, and gives its memory up again. Both
use torch_memory_saver's interface, so that this can also run with that package's own library:

    PYTHONPATH=$PWD python rl_driver.py --rounds 20 --tokens 830000

The last line on stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import multiprocessing
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama
from driving import offline, say, sglang_engine

KV, WEIGHTS = "kv_cache", "weights"


class Trainer:
    """Weights in bfloat16, a copy in float32 and Adam's two moments: 15 GiB with contents."""

    def __init__(self) -> None:
        import torch

        from torch_memory_saver import torch_memory_saver

        self.torch, self.saver = torch, torch_memory_saver
        torch.manual_seed(11)
        self.state: list[dict[str, list[Any]]] = []
        with torch_memory_saver.region("trainer", enable_cpu_backup=True):
            for part in llama.shapes():
                made = {}
                for name, shape in part.items():
                    full = torch.randn(shape, device="cuda") * 0.02 + ("norm" in name)
                    moments = [torch.zeros(shape, device="cuda") for _ in range(2)]
                    made[name] = [full.to(torch.bfloat16), full, *moments]
                self.state.append(made)
        # Not pausable: what another process maps by CUDA IPC must stay. All of the weights, because
        # nothing says when the engine has read a part.
        every = sum(w[0].numel() for part in self.state for w in part.values())
        self.bucket = torch.empty(every, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def step(self, number: int) -> None:
        """Makes a step whose results depend on every bit of the state."""
        torch = self.torch
        for part in self.state:
            for weight, full, first, second in part.values():
                slope = torch.sin(full * 300 + number)
                first.mul_(0.9).add_(slope, alpha=0.1)
                second.mul_(0.99).addcmul_(slope, slope, value=0.01)
                full.addcdiv_(first, second.sqrt().add_(1e-6), value=-2e-3)
                weight.copy_(full)
        torch.cuda.synchronize()

    def parts(self) -> Iterator[bytes]:
        """The handle of each part, with which another process opens it."""
        from sglang.srt.utils import MultiprocessingSerializer

        at = 0
        for part in self.state:
            views = []
            for name, (weight, *_) in part.items():
                view = self.bucket[at : at + weight.numel()].view(weight.shape)
                view.copy_(weight)
                views.append((name, view))
                at += weight.numel()
            self.torch.cuda.synchronize()
            yield MultiprocessingSerializer.serialize(views)


def train(pipe: Any) -> None:
    """The trainer's process, which follows commands."""
    trainer, parts = Trainer(), iter(())
    pipe.send("ready")
    while True:
        what, number = pipe.recv()
        answer: Any = None
        begun = time.perf_counter()
        if what == "step":
            trainer.step(number)
        elif what == "pause":
            trainer.torch.cuda.empty_cache()
            trainer.saver.pause("trainer")
        elif what == "resume":
            trainer.saver.resume("trainer")
        elif what == "parts":
            parts = trainer.parts()
        elif what == "part":
            answer = next(parts, None)
        else:
            pipe.send((None, 0.0))
            return
        pipe.send((answer, time.perf_counter() - begun))


class Turns:
    def __init__(self, asked: argparse.Namespace) -> None:
        import torch

        import torch_memory_saver

        self.torch = torch
        torch.zeros(1, device="cuda")
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=train, args=(theirs,), daemon=True)
        with torch_memory_saver.configure_subprocess():
            self.process.start()
        assert self.pipe.recv() == "ready"
        self.ask("pause")
        say("the trainer is paused")
        self.engine = sglang_engine(mem_fraction_static=0.6, max_total_tokens=asked.tokens)
        self._sampling = {"temperature": 0.0, "max_new_tokens": 24, "ignore_eos": True}
        self.generate()

    def ask(self, what: str, number: int = 0) -> Any:
        self.pipe.send((what, number))
        answer, _ = self.pipe.recv()
        return answer

    def generate(self) -> list[list[int]]:
        return [
            list(
                self.engine.generate(input_ids=prompt, sampling_params=self._sampling)["output_ids"]
            )
            for prompt in llama.prompts()
        ]

    def used(self) -> int:
        free, total = self.torch.cuda.mem_get_info()
        return int(total - free)

    def resident(self) -> int:
        """Bytes of host memory that the trainer and the engine's processes have."""
        pids = [self.process.pid, *self.engine.get_all_child_pids()]
        total = 0
        for pid in pids:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon", "RssShmem")):
                    total += int(line.split()[1]) << 10
        return total

    def hand_over(self) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput

        self.ask("parts")
        while part := self.ask("part"):
            update = UpdateWeightsFromTensorReqInput(
                serialized_named_tensors=[part], flush_cache=False
            )
            right, message = self.engine.loop.run_until_complete(
                self.engine.tokenizer_manager.update_weights_from_tensor(update, None)
            )
            assert right, message

    def round(self, number: int) -> dict[str, Any]:
        seconds: dict[str, float] = {}
        begun = time.perf_counter()

        def lap(name: str) -> None:
            nonlocal begun
            now = time.perf_counter()
            seconds[name], begun = now - begun, now

        self.engine.release_memory_occupation(tags=[KV, WEIGHTS])
        lap("engine out")
        self.ask("resume")
        lap("trainer in")
        used = self.used()
        begun = time.perf_counter()
        self.ask("step", number)
        lap("step")
        self.engine.resume_memory_occupation(tags=[WEIGHTS])
        lap("weights in")
        self.hand_over()
        lap("weights over")
        self.ask("pause")
        lap("trainer out")
        self.engine.resume_memory_occupation(tags=[KV])
        lap("cache in")
        tokens = self.generate()
        lap("rollout")
        found = {
            "tokens": tokens,
            "seconds": seconds,
            "training": used,
            "rollout": self.used(),
            "resident": self.resident(),
        }
        say(
            number, {k: round(v, 3) for k, v in seconds.items()}, used >> 20, found["rollout"] >> 20
        )
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=830000, help="of the KV cache")
    parser.add_argument("--timeout", type=int, default=280, help="seconds")
    asked = parser.parse_args()
    offline()
    faulthandler.dump_traceback_later(asked.timeout, exit=True)
    import torch_memory_saver

    result: dict[str, Any] = {"ok": False, "saver": str(Path(torch_memory_saver.__file__).parent)}
    turns = Turns(asked)
    say("up")
    result["rounds"] = []
    try:
        for number in range(asked.rounds):
            result["rounds"].append(turns.round(number))
        result["ok"] = True
    finally:
        print(json.dumps(result), flush=True)
        turns.process.kill()
        turns.engine.shutdown()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
