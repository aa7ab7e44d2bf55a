"""PyTorch on every kind of pool gives the same results, to the last bit, as on its own allocator.

PyTorch's allocator can be changed once in a process, before CUDA is used, so each kind has a
process of its own; they run at the same time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from device import torch_on_gpu

torch = torch_on_gpu()

KINDS = ["naive", "freelist", "buddy", "slab", "caching", "bfc", "paddle"]

# Each section prints a line of JSON with its name, and its result or traceback.
PROGRAM = """
import contextlib, json, sys, traceback
import tms, torch

kind = sys.argv[1]
options = {
    "freelist": {"buffer": "1GiB"},
    "buddy": {"capacity": "1GiB"},
    "slab": {"capacity": "1GiB"},
    "paddle": {"max_chunk": "1GiB"},
}
if kind != "native":
    tms.use_allocator(kind, **options.get(kind, {}))
torch.use_deterministic_algorithms(True)


class Layer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.project(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.second(x))


def losses(between=lambda: None, steps=5, inside=contextlib.nullcontext):
    torch.manual_seed(1)
    with inside():
        model = torch.nn.Sequential(
            torch.nn.Embedding(500, 128), Layer(128, 4), Layer(128, 4), torch.nn.Linear(128, 500)
        ).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = []
    for step in range(steps):
        with inside():
            text = torch.randint(500, (8, 64 + 8 * step + 1)).cuda()  # the shapes change
            scores = model(text[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item().hex())
            del scores, loss
        between()
    return found


def train():
    return losses(torch.cuda.empty_cache)


def train_in_a_region():
    given = []

    def pause():
        tms.pause("train")
        # Other processes use the device too, so its own figure says nothing.
        tags = [tag for device in tms.stats()["devices"] for tag in device["tags"]]
        given.append(sum(tag["paused_bytes"] for tag in tags if tag["tag"] == "train"))
        tms.resume("train")

    found = losses(pause, inside=lambda: tms.region("train", backup="host"))
    assert min(given) >= 2 << 20, given
    return found


def graph():
    static = torch.ones(1 << 20, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        (static * 2 + 1).sum()  # what is made at the first use is not to be in the graph
    torch.cuda.current_stream().wait_stream(stream)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        result = (static * 2 + 1).sum()
    others = [torch.full((1 << 20,), 7.0, device="cuda") for _ in range(8)]
    found = []
    for value in (1.0, 2.0, 3.0):
        static.fill_(value)
        captured.replay()
        found.append(result.item() / (1 << 20))
    assert all(bool((other == 7).all()) for other in others)
    del captured, result
    torch.cuda.empty_cache()
    return found


def two_streams():
    \"\"\"A block is not made again while another stream reads it.\"\"\"
    side = torch.cuda.Stream()
    wrong = 0
    for value in range(20):
        block = torch.full((1 << 22,), float(value), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            copy = block.clone()
        block.record_stream(side)
        del block
        torch.full((1 << 22,), -1.0, device="cuda")
        torch.cuda.synchronize()
        wrong += int((copy != value).any())
        del copy
    return wrong


def shortage():
    try:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    except RuntimeError as error:
        assert "CUDA out of memory" in str(error), error
    return torch.ones(1000, device="cuda").sum().item()


def train_in_a_mem_pool():
    return losses(inside=lambda: tms.allocator("bfc"))


sections = [train, train_in_a_region, graph, two_streams, shortage]
if kind == "native":
    sections.append(train_in_a_mem_pool)
for section in sections:
    try:
        print(json.dumps([section.__name__, section()]), flush=True)
    except Exception:
        print(json.dumps([section.__name__, traceback.format_exc()]), flush=True)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """What each section found, by kind."""
    directory: Path = tmp_path_factory.mktemp("pools")
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    children = {}
    for kind in ["native", *KINDS]:
        with (
            open(directory / f"{kind}.out", "w") as out,
            open(directory / f"{kind}.err", "w") as err,
        ):
            children[kind] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, kind], env=environment, stdout=out, stderr=err
            )
    found = {}
    try:
        for kind, child in children.items():
            code = child.wait(timeout=120)
            lines = (directory / f"{kind}.out").read_text().splitlines()
            found[kind] = dict(json.loads(line) for line in lines)
            found[kind]["end"] = f"exit {code}\n" + (directory / f"{kind}.err").read_text()
        yield found
    finally:
        for child in children.values():
            child.kill()
            child.wait()


@pytest.mark.parametrize("section", ["train", "train_in_a_region", "graph", "two_streams"])
@pytest.mark.parametrize("kind", KINDS)
def test_same_as_pytorchs_own(kind: str, section: str, results: dict[str, Any]) -> None:
    expected = results["native"].get(section, results["native"]["end"])
    assert isinstance(expected, (list, int)), expected
    assert results[kind].get(section, results[kind]["end"]) == expected


def test_what_is_expected(results: dict[str, Any]) -> None:
    native = results["native"]
    assert len(set(native["train"])) == 5, native
    assert native["train_in_a_region"] == native["train"]
    assert native["graph"] == [3.0, 5.0, 7.0]
    assert native["two_streams"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_shortage_is_an_exception(kind: str, results: dict[str, Any]) -> None:
    assert results[kind].get("shortage", results[kind]["end"]) == 1000.0


def test_mem_pool(results: dict[str, Any]) -> None:
    native = results["native"]
    assert native.get("train_in_a_mem_pool", native["end"]) == native["train"]


@pytest.mark.parametrize("kind", ["native", *KINDS])
def test_ends_well(kind: str, results: dict[str, Any]) -> None:
    """Tensors alive at the end are freed after the interpreter, without a message or a crash."""
    end = results[kind]["end"]
    assert end.startswith("exit 0\n")
    assert "tms:" not in end
