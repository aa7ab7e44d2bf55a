"""A trainer of `scripts/bench.sh engines`: a Llama model in PyTorch, which learns from tokens.

    learner.py FOLDER

FOLDER has the checkpoint that it begins with. It obeys lines of JSON on stdin, [word, argument],
and answers each with a line. The rewards are made up: remainders of the tokens.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import shutil
import sys
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import usage  # noqa: F401

RATE = 4e-4  # of a step, for weights of 0.02; at 1e-3 all answers are alike after five steps
HEAD = 128


class Learner:
    def __init__(self, folder: Path) -> None:
        import torch
        from llama import CONFIG
        from safetensors.torch import load_file

        self.torch, self.config, self.folder = torch, CONFIG, folder
        self.weights = load_file(folder / "model.safetensors", device="cuda")
        for weight in self.weights.values():
            weight.requires_grad_(True)
        torch.cuda.synchronize()

    # The model

    def logits(self, ids: Any) -> Any:
        torch, weights, config = self.torch, self.weights, self.config
        function = torch.nn.functional
        length = ids.shape[1]
        angles = torch.arange(length, device="cuda")[:, None] * config["rope_theta"] ** (
            -torch.arange(0, HEAD, 2, device="cuda") / HEAD
        )
        turn = [part.repeat(1, 2).to(torch.bfloat16) for part in (angles.cos(), angles.sin())]

        def norm(x: Any, name: str) -> Any:
            return function.rms_norm(x, x.shape[-1:], weights[name], config["rms_norm_eps"])

        def heads(x: Any, name: str, turned: bool) -> Any:
            x = function.linear(x, weights[name]).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            if not turned:
                return x
            first, second = x.chunk(2, -1)
            return x * turn[0] + torch.cat([-second, first], -1) * turn[1]

        x = function.embedding(ids, weights["model.embed_tokens.weight"])
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}"
            y = norm(x, f"{at}.input_layernorm.weight")
            query, key, value = (
                heads(y, f"{at}.self_attn.{one}_proj.weight", one != "v") for one in "qkv"
            )
            y = function.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=True
            )
            y = y.transpose(1, 2).flatten(2)
            x = x + function.linear(y, weights[f"{at}.self_attn.o_proj.weight"])
            y = norm(x, f"{at}.post_attention_layernorm.weight")
            gate = function.silu(function.linear(y, weights[f"{at}.mlp.gate_proj.weight"]))
            y = gate * function.linear(y, weights[f"{at}.mlp.up_proj.weight"])
            x = x + function.linear(y, weights[f"{at}.mlp.down_proj.weight"])
        return function.linear(norm(x, "model.norm.weight"), weights["lm_head.weight"])

    def learn(self, groups: list[dict[str, Any]]) -> dict[str, float]:
        """A step of GRPO: answers to one prompt are compared with each other."""
        torch, rewards = self.torch, []
        begin = time.monotonic()
        for group in groups:
            prompt, answers = group["prompt"], torch.tensor(group["answers"], device="cuda")
            reward = (answers % 97).float().mean(1)
            advantage = (reward - reward.mean()) / (reward.std() + 1e-6)
            before = torch.tensor(prompt, device="cuda").expand(len(answers), -1)
            logits = self.logits(torch.cat([before, answers], 1))[:, len(prompt) - 1 : -1]
            chosen = logits.float().log_softmax(-1).gather(-1, answers[..., None])
            (-(advantage * chosen.squeeze(-1).mean(1)).mean()).backward()
            rewards.append(reward.mean().item())
        with torch.no_grad():
            for weight in self.weights.values():
                weight.sub_(weight.grad.sign(), alpha=RATE)
                weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return {"reward": sum(rewards) / len(rewards), "seconds": time.monotonic() - begin}

    # Three ways to an engine

    def next(self, argument: dict[str, Any]) -> dict[str, float]:
        """Writes the next version of each rank's set, or of some ranks', and seals them.

        At the moment `stop` it says so, and waits to be killed; at "sealing" it goes on.
        """
        import tms

        torch, names = self.torch, argument["names"]
        ranks = argument.get("ranks", range(len(names)))

        def at(moment: str) -> None:
            if moment == argument.get("stop"):
                print(json.dumps(moment), flush=True)
                time.sleep(0 if moment == "sealing" else 1000)

        def write(rank: int, tensors: dict[str, Any]) -> None:  # and keeps none of them
            with torch.no_grad():
                for number, (name, tensor) in enumerate(tensors.items()):
                    if number == len(tensors) // 2:
                        at("half")
                    self._fill(name, tensor, rank, len(names))

        begin = time.monotonic()
        with contextlib.ExitStack() as stack:
            sets = [stack.enter_context(tms.kept(names[rank]).next()) for rank in ranks]
            made = time.monotonic()
            at("made")
            for rank, tensors in zip(ranks, sets):
                write(rank, tensors)
            for device in range(torch.cuda.device_count()):
                torch.cuda.synchronize(device)
            filled = time.monotonic()
            at("sealing")
        sealed = time.monotonic()
        return {
            "making": made - begin,
            "filling": filled - made,
            "sealing": sealed - filled,
            "sealed": sealed,
        }

    def _fill(self, name: str, tensor: Any, rank: int, ranks: int) -> None:
        """Writes an engine's tensor: parameters that it has fused, and this rank's part of them."""
        along = 1 if name.endswith(("o_proj.weight", "down_proj.weight")) else 0
        names = [name]
        for fused, parts in _FUSED.items():
            if fused in name:
                names = [name.replace(fused, part) for part in parts]
        begin = 0
        for one in names:
            whole = self.weights[one]
            if "embed_tokens" in one or "lm_head" in one:  # padded to a multiple
                part = whole[rank * len(tensor) : (rank + 1) * len(tensor)]
            else:
                part = whole if whole.dim() == 1 else whole.chunk(ranks, along)[rank]
            tensor.narrow(along, begin, part.shape[along]).copy_(part)
            begin += part.shape[along]

    def handles(self, argument: dict[str, Any]) -> dict[str, Any]:
        """Handles (CUDA IPC) of all weights, as the engine's own update wants them, in a file."""
        begin = time.monotonic()
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        made = _for_sglang(weights) if argument["engine"] == "sglang" else self._for_vllm(weights)
        Path(argument["path"]).write_bytes(made)
        return {"sealed": begin, "making": time.monotonic() - begin}

    def _for_vllm(self, weights: dict[str, Any]) -> bytes:
        """The update_info of its weight transfer by IPC, as JSON."""
        from torch.multiprocessing.reductions import reduce_tensor

        uuid = str(self.torch.cuda.get_device_properties(0).uuid)
        handles = [{uuid: reduce_tensor(weight)[1]} for weight in weights.values()]
        info = {
            "names": list(weights),
            "dtype_names": [str(weight.dtype).split(".")[-1] for weight in weights.values()],
            "shapes": [list(weight.shape) for weight in weights.values()],
            "ipc_handles_pickled": base64.b64encode(pickle.dumps(handles)).decode(),
        }
        return json.dumps(info).encode()

    def file(self, folder: str) -> dict[str, float]:
        """A checkpoint of its own in `folder`."""
        from safetensors.torch import save_file

        place = Path(folder)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        shutil.copy(self.folder / "config.json", place)
        begin = time.monotonic()
        weights = {name: weight.detach() for name, weight in self.weights.items()}
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        sealed = time.monotonic()
        return {"sealed": sealed, "making": sealed - begin}


def _for_sglang(weights: dict[str, Any]) -> bytes:
    """As its MultiprocessingSerializer."""
    import torch.multiprocessing  # tells the pickler how tensors are shared  # noqa: F401

    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(list(weights.items()))
    return buffer.getvalue()


_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


def main() -> None:
    learner = Learner(Path(sys.argv[1]))
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        word, argument = json.loads(line)
        try:
            answer = getattr(learner, word)(argument)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
