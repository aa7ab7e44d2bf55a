"""A small RL loop with verl's own worker groups: a trainer and a rollout take turns on one GPU.

    scripts/bench.sh rl [--steps 10] [--layers 16] [--hidden 2048] [--cache-gib 40] [--apart]

Two verl worker groups (verl.single_controller, on Ray) share a resource pool, so a GPU has a
process of each. The rollout has bfloat16 weights and a cache of keys and values that is taken once,
and generates groups of answers. The trainer has float32 weights and Adam's moments, and makes a
step of GRPO with verl's own advantages and aggregation of losses. The reward is the share of even
tokens. Weights go over through host memory. Between its turns a process is paused by `tms.ray`:
weights and moments are saved, the cache is discarded. Then the same loop runs without tms: with
--apart on a second GPU, else beside each other on one, for which both must fit. Rewards and losses
of both runs must be equal, bit for bit. Prints time and memory of each phase, and last, JSON. It
needs PyTorch, Ray and verl 0.9.1 (--no-deps, with tensordict, hydra-core, omegaconf and
codetiming). --cpu tries the loop without a GPU and without tms.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from typing import Any

import usage  # noqa: F401

GROUPS, ANSWERS, PROMPT, LENGTH, TOKENS = 16, 8, 8, 24, 64
PHASES = ("rollout in", "generate", "rollout out", "trainer in", "train", "weights", "trainer out")


def model(torch: Any, layers: int, hidden: int, dtype: Any, device: str) -> Any:
    """A transformer with random weights, equal in each process."""
    torch.manual_seed(1)

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
            self.all = torch.nn.Linear(hidden, 3 * hidden)
            self.out = torch.nn.Linear(hidden, hidden)
            self.up = torch.nn.Linear(hidden, 4 * hidden)
            self.down = torch.nn.Linear(4 * hidden, hidden)

        def forward(self, x: Any, cache: Any, at: int) -> Any:
            batch, length, _ = x.shape
            q, k, v = self.all(self.first(x)).view(batch, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
            if cache is not None:
                cache[0, :, :, at : at + length], cache[1, :, :, at : at + length] = k, v
                k, v = cache[0, :, :, : at + length], cache[1, :, :, : at + length]
            scores = q.float() @ k.float().transpose(2, 3) / 8
            seen = torch.arange(at + length, device=x.device) <= torch.arange(
                at, at + length, device=x.device
            ).unsqueeze(1)
            mixed = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(x.dtype) @ v
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
            return x + self.down(torch.nn.functional.gelu(self.up(self.second(x))))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.tokens = torch.nn.Embedding(TOKENS, hidden)
            self.places = torch.nn.Embedding(PROMPT + LENGTH, hidden)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
            self.head = torch.nn.Linear(hidden, TOKENS)

        def forward(self, tokens: Any, caches: Any = None, at: int = 0) -> Any:
            places = torch.arange(at, at + tokens.shape[1], device=tokens.device)
            x = self.tokens(tokens) + self.places(places)
            for number, block in enumerate(self.blocks):
                x = block(x, None if caches is None else caches[number], at)
            return self.head(x).float()

    return Model().to(dtype).to(device)


def workers() -> tuple[Any, Any]:
    """The classes of the two groups. verl is imported where they run."""
    import ray
    from verl import DataProto
    from verl.single_controller.base import Worker
    from verl.single_controller.base.decorator import Dispatch, register

    class Own(Worker):  # type: ignore[misc]
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__()
            import torch

            torch.use_deterministic_algorithms(True)
            self.settings = settings
            self.device = "cpu" if settings["cpu"] else "cuda"
            if settings["tms"]:
                import tms

                self.region: Any = tms.region
            else:
                import contextlib

                self.region = lambda *_, **__: contextlib.nullcontext()

        def make(self, dtype: Any) -> None:
            import torch

            with self.region("weights", backup="host"):
                self.model = model(
                    torch, self.settings["layers"], self.settings["hidden"], dtype, self.device
                )

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def used(self) -> float:
            """GiB in use on the device, by all processes."""
            import torch

            if self.device == "cpu":
                return 0.0
            torch.cuda.empty_cache()
            free, total = torch.cuda.mem_get_info()
            return (total - free) / 2**30

    class Trainer(Own):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            import torch

            self.make(torch.float32)
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-4, foreach=False)
            with self.region("moments", backup="host"):  # Adam makes them at its first step
                for parameter in self.model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
                    self.optimizer.state[parameter] = {
                        "step": torch.zeros(()),
                        "exp_avg": torch.zeros_like(parameter),
                        "exp_avg_sq": torch.zeros_like(parameter),
                    }

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def train(self, data: DataProto) -> tuple[float, float]:
            import torch
            from verl.trainer.ppo import core_algos

            batch = data.batch.to(self.device)
            tokens, old, rewards = batch["tokens"], batch["old"], batch["rewards"]
            mask = torch.ones_like(old)
            scores = torch.zeros_like(old)
            scores[:, -1] = rewards
            index = data.non_tensor_batch["group"]
            advantages, _ = core_algos.compute_grpo_outcome_advantage(scores, mask, index)
            self.optimizer.zero_grad(set_to_none=False)
            logits = self.model(tokens[:, :-1])[:, PROMPT - 1 :]
            new = logits.log_softmax(-1).gather(2, tokens[:, PROMPT:, None]).squeeze(2)
            ratio = (new - old).exp()
            clipped = ratio.clamp(0.8, 1.2)
            losses = -torch.min(ratio * advantages, clipped * advantages)
            loss = core_algos.agg_loss(losses, mask, loss_agg_mode="token-mean")
            loss.backward()
            self.optimizer.step()
            return float(loss), float(rewards.mean())

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def write(self, path: str) -> None:
            import torch

            host = {n: v.to(torch.bfloat16).cpu() for n, v in self.model.state_dict().items()}
            torch.save(host, path)

    class Rollout(Own):
        def __init__(self, settings: dict[str, Any]) -> None:
            super().__init__(settings)
            import torch

            self.make(torch.bfloat16)
            self.model.requires_grad_(False)
            places = (PROMPT + LENGTH) * settings["hidden"] * 2 * GROUPS * ANSWERS * 2
            units = max(settings["layers"], int(settings["cache_gib"] * 2**30) // places)
            shape = (units, 2, GROUPS * ANSWERS, settings["hidden"] // 64, PROMPT + LENGTH, 64)
            with self.region("cache"):
                self.cache = torch.empty(shape, dtype=torch.bfloat16, device=self.device)

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def read(self, path: str) -> None:
            import torch

            self.model.load_state_dict(torch.load(path, map_location=self.device))

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def generate(self, step: int) -> DataProto:
            import numpy
            import torch

            random = torch.Generator("cpu").manual_seed(step)
            prompts = torch.randint(TOKENS, (GROUPS, PROMPT), generator=random)
            tokens = prompts.repeat_interleave(ANSWERS, 0).to(self.device)
            old, at, layers = [], 0, self.settings["layers"]
            first = step * layers % max(1, len(self.cache) - layers + 1)  # in turn
            caches = self.cache[first : first + layers]
            for _ in range(LENGTH):
                logits = self.model(tokens[:, at:], caches, at)[:, -1]
                at = tokens.shape[1]
                chances = logits.log_softmax(-1)
                noise = torch.rand(chances.shape, generator=random).clamp_min(1e-9).to(self.device)
                chosen = (chances - (-noise.log()).log()).argmax(-1, keepdim=True)
                old.append(chances.gather(1, chosen))
                tokens = torch.cat([tokens, chosen], 1)
            answers = tokens[:, PROMPT:]
            rewards = (answers % 2 == 0).float().mean(1)  # the rule: even tokens
            group = numpy.arange(GROUPS).repeat(ANSWERS)
            tensors = {"tokens": tokens, "old": torch.cat(old, 1), "rewards": rewards}
            return DataProto.from_dict(
                {name: tensor.cpu() for name, tensor in tensors.items()}, {"group": group}
            )

    return ray.remote(Trainer), ray.remote(Rollout)


def loop(options: argparse.Namespace, with_tms: bool) -> dict[str, Any]:
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

    settings = {**vars(options), "tms": with_tms}
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    if with_tms:
        import tms
        import tms.ray

        environment["LD_PRELOAD"] = tms.library_path()
        environment["TMS_RETAIN_CPU_BACKUP"] = "1"
    gpu = not options.cpu
    apart = gpu and options.apart and not with_tms
    pools = [
        RayResourcePool([1], use_gpu=gpu, max_colocate_count=1 if apart else 2)
        for _ in range(2 if apart else 1)
    ]
    groups, taken = [], {}
    for kind, pool in zip(workers(), (pools[0], pools[-1])):
        made = RayWorkerGroup(
            pool,
            RayClassWithInitArgs(kind, settings),
            worker_env=dict(environment),
            device_name="cuda" if gpu else "cpu",
        )
        groups.append(made)
        if with_tms and len(groups) == 1:
            taken["made"] = made.used()[0]
            tms.ray.pause(made.workers)
    trainer, rollout = groups
    seconds: dict[str, list[float]] = {phase: [] for phase in PHASES}
    memory: dict[str, float] = {}
    rewards, losses = [], []

    def timed(phase: str, call: Any, shows: Any = None) -> Any:
        begun = time.perf_counter()
        result = call()
        seconds[phase].append(time.perf_counter() - begun)
        if shows is not None:
            memory[phase] = shows.used()[0]
        return result

    def turn(phase: str, group: Any, pauses: bool) -> None:
        if with_tms:
            call = tms.ray.pause if pauses else tms.ray.resume
            timed(phase, lambda: call(group.workers))

    path = f"/dev/shm/tms-bench-rl-{os.getpid()}"
    try:
        for step in range(options.steps):
            if step:
                turn("rollout in", rollout, False)
                rollout.read(path)
            data = timed("generate", lambda step=step: rollout.generate(step)[0], rollout)
            turn("rollout out", rollout, True)
            turn("trainer in", trainer, False)
            loss, reward = timed("train", lambda data=data: trainer.train(data)[0], trainer)
            timed("weights", lambda: trainer.write(path))
            turn("trainer out", trainer, True)
            losses.append(loss)
            rewards.append(reward)
    finally:
        if os.path.exists(path):
            os.unlink(path)
    import ray

    for group in groups:
        for worker in group.workers:
            ray.kill(worker)
    for pool in pools:
        for placed in pool.get_placement_groups(device_name="cuda" if gpu else "cpu"):
            ray.util.remove_placement_group(placed)
    return {"rewards": rewards, "losses": losses, "seconds": seconds, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--cache-gib", type=float, default=40)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    options = parser.parse_args()
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    ray.init(
        num_cpus=8,
        num_gpus=0 if options.cpu else 1 + options.apart,
        include_dashboard=False,
        object_store_memory=200 << 20,
        logging_level="ERROR",
        _node_ip_address="127.0.0.1",  # there may be no network
        runtime_env={"env_vars": {"PYTHONPATH": ":".join(p for p in sys.path if p)}},
    )
    runs = {"with tms": loop(options, not options.cpu), "without": loop(options, False)}
    ray.shutdown()
    for name, run in runs.items():
        print(f"{name}: {'second GPU' if options.apart and name == 'without' else 'one GPU'}")
        for phase in PHASES:
            if run["seconds"][phase]:
                later = run["seconds"][phase][1:] or run["seconds"][phase]
                used = f"{run['memory'][phase]:8.1f} GiB in use" if phase in run["memory"] else ""
                print(f"  {phase:<12} {statistics.median(later):8.3f} s {used}")
        print("  rewards " + " ".join(f"{reward:.4f}" for reward in run["rewards"]))
    print(json.dumps(runs))
    same = [runs["with tms"][what] == runs["without"][what] for what in ("rewards", "losses")]
    if not all(same):
        raise SystemExit("rewards or losses differ")
    print("rewards and losses are equal, bit for bit")


if __name__ == "__main__":
    main()
