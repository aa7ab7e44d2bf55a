"""A training by transformers' Trainer, which is paused between steps and between the parts of one.

    python train_transformers.py [--region] [--pause EVERY]
    torchrun --nproc-per-node 2 train_transformers.py [--region] [--pause EVERY]

The second shards weights, gradients and optimizer state over the GPUs (FSDP), and all ranks pause
together. --region puts the construction and the training into one region; without it
TMS_INIT_ENABLE=1 is to be in the environment, or nothing is pausable. The last line on stdout is
one JSON list, with an object for each rank.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import tempfile
from collections.abc import Iterable
from typing import Any

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import transformers

STEPS, PARTS = 8, 4
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


class Tokens(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The same for the same index."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        tokens = torch.randint(4096, (128,), generator=made)
        return {"input_ids": tokens, "labels": tokens}


class Pauses(transformers.TrainerCallback):  # type: ignore[misc]
    """Pauses after each `every`-th part of a step."""

    def __init__(self, every: int) -> None:
        self.every, self.parts = every, 0
        self.pauses: list[dict[str, Any]] = []

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self._part("in the middle of a step")

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._part("between steps")

    def _part(self, where: str) -> None:
        self.parts += 1
        if not self.every or self.parts % self.every:
            return
        tms = importlib.import_module("tms.distributed" if RANKS > 1 else "tms")
        before = torch.cuda.mem_get_info()[0]
        freed = tms.pause()
        shown = torch.cuda.mem_get_info()[0] - before
        tms.resume()
        self.pauses.append({"where": where, "freed": freed, "shown": shown})


def local(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """This rank's part of the parameters."""
    return [getattr(tensor, "to_local", tensor.detach)().detach() for tensor in tensors]


def bits(parts: Iterable[torch.Tensor]) -> int:
    """A sum of the tensors as integers: the same for the same bits."""
    return sum(int(part.view(torch.int32).sum(dtype=torch.int64)) for part in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--region", action="store_true", help="one region around all of it")
    parser.add_argument("--pause", type=int, default=0, help="after every N parts of a step")
    asked = parser.parse_args()
    region: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if asked.region:
        import tms

        region = tms.region("trainer", backup="host")
    pauses = Pauses(asked.pause)
    with region:
        config = transformers.LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=8,
            vocab_size=4096,
            attn_implementation="eager",
        )
        transformers.set_seed(7)
        model = transformers.LlamaForCausalLM(config)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        trainer = transformers.Trainer(
            model,
            transformers.TrainingArguments(
                output_dir=tempfile.mkdtemp(),
                max_steps=STEPS,
                per_device_train_batch_size=4,
                gradient_accumulation_steps=PARTS,
                learning_rate=1e-3,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                seed=7,
                full_determinism=True,
                disable_tqdm=True,
                fsdp=RANKS > 1,
                fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
                if RANKS > 1
                else None,
            ),
            train_dataset=Tokens(),
            callbacks=[pauses],
        )
        trainer.train()
    state = trainer.optimizer.state.values()
    said = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "weights": bits(local(model.parameters())),
        "moments": [
            bits(local(each[kind] for each in state)) for kind in ("exp_avg", "exp_avg_sq")
        ],
        "parameters": parameters,
        "of them here": sum(part.numel() for part in local(model.parameters())),
        "pauses": pauses.pauses,
    }
    every: list[Any] = [said] * RANKS
    if RANKS > 1:
        torch.distributed.all_gather_object(every, said)
        torch.distributed.destroy_process_group()
    if trainer.is_world_process_zero():
        print(json.dumps(every))


if __name__ == "__main__":
    main()
