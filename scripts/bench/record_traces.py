"""Records what three PyTorch programs ask of the allocator, as traces for tms replay.

    python3 record_traces.py FOLDER

Needs torch and a GPU, nothing else, and about a minute. Writes to FOLDER:

    transformer.csv.gz   training of a GPT of 12 layers: the model made, a first step, a second step
    unet.csv.gz          training of a diffusion U-Net on images of changing shapes
    server.csv.gz        serving of a Llama-like model: requests come and go, their KV caches grow
    native.json          how fast PyTorch's own allocator plays each of them, on this machine

Every line is a tensor (or a library's workspace), from PyTorch's memory history: an allocate has
the size that was asked for, a free is where the memory could be used again. The models are random,
and small beside those in use; what they ask for, and in which order, is the same but for sizes.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterable
from typing import Any, Callable

import usage  # noqa: F401

LARGEST = 300_000  # bytes of a compressed trace; a longer one ends early
HEADER = "Thread,Time,Action,Pointer,Size,Stream"


class Size:
    """How large the programs are."""

    width, layers, sequence, batch, vocabulary = 768, 12, 1024, 8, 50304
    channels, images, steps = 96, 4, 6
    shapes = [(64, 64), (48, 80), (80, 48), (64, 96), (96, 96), (40, 104)]
    hidden, blocks, heads, kv_heads, ticks, requests = 1024, 6, 16, 4, 72, 8
    prompts, answers = (32, 512), (12, 64)


def train_transformer(torch: Any, size: type[Size], device: str) -> None:
    nn, f = torch.nn, torch.nn.functional
    width, heads = size.width, size.width // 64

    def linear(inputs: int, outputs: int) -> Any:
        return nn.Linear(inputs, outputs, device=device)

    embed = nn.Embedding(size.vocabulary, width, device=device)
    positions = nn.Embedding(size.sequence, width, device=device)
    blocks = nn.ModuleList(
        nn.ModuleDict(
            {
                "norm1": nn.LayerNorm(width, device=device),
                "qkv": linear(width, 3 * width),
                "out": linear(width, width),
                "norm2": nn.LayerNorm(width, device=device),
                "up": linear(width, 4 * width),
                "down": linear(4 * width, width),
            }
        )
        for _ in range(size.layers)
    )
    final = nn.LayerNorm(width, device=device)
    model = nn.ModuleList([embed, positions, blocks, final])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def attention(block: Any, x: Any) -> Any:
        batch, length, _ = x.shape
        q, k, v = (
            part.view(batch, length, heads, -1).transpose(1, 2)
            for part in block["qkv"](x).split(width, dim=2)
        )
        y = f.scaled_dot_product_attention(q, k, v, is_causal=True)
        return block["out"](y.transpose(1, 2).reshape(batch, length, width))

    def step() -> None:
        tokens = torch.randint(size.vocabulary, (size.batch, size.sequence + 1), device=device)
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        with torch.autocast(device, dtype=torch.bfloat16):
            x = embed(inputs) + positions(torch.arange(size.sequence, device=device))
            for block in blocks:
                x = x + f.dropout(attention(block, block["norm1"](x)), 0.1)
                y = f.gelu(block["up"](block["norm2"](x)))
                x = x + f.dropout(block["down"](y), 0.1)
            logits = f.linear(final(x), embed.weight)
            loss = f.cross_entropy(logits.reshape(-1, size.vocabulary), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for _ in range(2):
        step()


def train_unet(torch: Any, size: type[Size], device: str) -> None:
    nn, f = torch.nn, torch.nn.functional
    widths = [size.channels, 2 * size.channels, 4 * size.channels]
    features = 4 * size.channels

    def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> Any:
        return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, device=device)

    def residual(inputs: int, outputs: int, attends: bool) -> Any:
        parts = {
            "norm1": nn.GroupNorm(8, inputs, device=device),
            "conv1": conv(inputs, outputs),
            "time": nn.Linear(features, outputs, device=device),
            "norm2": nn.GroupNorm(8, outputs, device=device),
            "conv2": conv(outputs, outputs),
        }
        if inputs != outputs:
            parts["skip"] = conv(inputs, outputs, 1)
        if attends:
            parts["norm3"] = nn.GroupNorm(8, outputs, device=device)
            parts["qkv"] = conv(outputs, 3 * outputs, 1)
            parts["out"] = conv(outputs, outputs, 1)
        return nn.ModuleDict(parts)

    def apply(block: Any, x: Any, time: Any) -> Any:
        y = block["conv1"](f.silu(block["norm1"](x)))
        y = y + block["time"](f.silu(time))[:, :, None, None]
        y = block["conv2"](f.dropout(f.silu(block["norm2"](y)), 0.1))
        x = y + (block["skip"](x) if "skip" in block else x)
        if "qkv" not in block:
            return x
        batch, channels, height, width = x.shape
        q, k, v = (
            part.reshape(batch, channels // 48, 48, height * width).transpose(2, 3)
            for part in block["qkv"](block["norm3"](x)).chunk(3, dim=1)
        )
        z = f.scaled_dot_product_attention(q, k, v).transpose(2, 3)
        return x + block["out"](z.reshape(batch, channels, height, width))

    first, last = conv(4, widths[0]), conv(widths[0], 4)
    times = nn.Sequential(
        nn.Linear(widths[0], features, device=device),
        nn.SiLU(),
        nn.Linear(features, features, device=device),
    )
    down, up, shrink, grow = nn.ModuleList(), nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
    inputs, kept = widths[0], [widths[0]]
    for level, width in enumerate(widths):
        for _ in range(2):
            down.append(residual(inputs, width, level > 0))
            inputs = width
            kept.append(width)
        if level < 2:
            shrink.append(conv(width, width, 3, 2))
            kept.append(width)
    middle = residual(inputs, inputs, True)
    for level, width in reversed(list(enumerate(widths))):
        for _ in range(3):
            up.append(residual(inputs + kept.pop(), width, level > 0))
            inputs = width
        if level:
            grow.append(conv(width, width))
    model = nn.ModuleList([first, last, times, down, up, shrink, grow, middle])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def predict(x: Any, at: Any) -> Any:
        rates = torch.exp(-torch.arange(widths[0] // 2, device=device) / 16)
        angles = at[:, None] * rates[None]
        time = times(torch.cat([angles.sin(), angles.cos()], dim=1))
        x = first(x)
        skips = [x]
        for i, block in enumerate(down):
            x = apply(block, x, time)
            skips.append(x)
            if i % 2 and i // 2 < len(shrink):
                x = shrink[i // 2](x)
                skips.append(x)
        x = apply(middle, x, time)
        for i, block in enumerate(up):
            x = apply(block, torch.cat([x, skips.pop()], dim=1), time)
            if i % 3 == 2 and i // 3 < len(grow):
                x = grow[i // 3](f.interpolate(x, scale_factor=2.0))
        return last(x)

    for step in range(size.steps):
        height, width = size.shapes[step % len(size.shapes)]
        images = torch.randn(size.images, 4, height, width, device=device)
        noise = torch.randn_like(images)
        at = torch.rand(size.images, device=device)
        mixed = images * (1 - at)[:, None, None, None] + noise * at[:, None, None, None]
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = f.mse_loss(predict(mixed, at * 1000).float(), noise - images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def serve(torch: Any, size: type[Size], device: str) -> None:
    f = torch.nn.functional
    hidden, heads, kv_heads = size.hidden, size.heads, size.kv_heads
    each, inner, vocabulary = hidden // heads, hidden * 11 // 4, 32000
    dtype = torch.bfloat16

    def weight(outputs: int, inputs: int) -> Any:
        return torch.randn(outputs, inputs, device=device, dtype=dtype) * inputs**-0.5

    embed, output = weight(vocabulary, hidden), weight(vocabulary, hidden)
    layers = [
        {
            "q": weight(heads * each, hidden),
            "k": weight(kv_heads * each, hidden),
            "v": weight(kv_heads * each, hidden),
            "o": weight(hidden, heads * each),
            "gate": weight(inner, hidden),
            "up": weight(inner, hidden),
            "down": weight(hidden, inner),
        }
        for _ in range(size.blocks)
    ]
    rates = 10000.0 ** (-torch.arange(0, each, 2, device=device) / each)

    def norm(x: Any) -> Any:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(dtype)

    def rotate(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def forward(tokens: Any, positions: Any, caches: list[list[Any]], counts: list[int]) -> Any:
        """Logits of all tokens; counts says how many belong to each cache."""
        x = f.embedding(tokens, embed)
        angles = positions[:, None, None] * rates
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        for number, w in enumerate(layers):
            y = norm(x)
            q = rotate(f.linear(y, w["q"]).view(-1, heads, each), cos, sin)
            k = rotate(f.linear(y, w["k"]).view(-1, kv_heads, each), cos, sin)
            v = f.linear(y, w["v"]).view(-1, kv_heads, each)
            outputs = []
            parts = zip(caches, q.split(counts), k.split(counts), v.split(counts))
            for cache, q1, k1, v1 in parts:
                if cache[number] is not None:
                    k1 = torch.cat([cache[number][0], k1])
                    v1 = torch.cat([cache[number][1], v1])
                else:
                    k1, v1 = k1.clone(), v1.clone()
                cache[number] = (k1, v1)
                wide = [
                    z.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1)[None]
                    for z in (k1, v1)
                ]
                z = f.scaled_dot_product_attention(
                    q1.transpose(0, 1)[None], *wide, is_causal=len(q1) > 1
                )
                outputs.append(z[0].transpose(0, 1).reshape(len(q1), -1))
            x = x + f.linear(torch.cat(outputs), w["o"])
            y = norm(x)
            x = x + f.linear(f.silu(f.linear(y, w["gate"])) * f.linear(y, w["up"]), w["down"])
        return f.linear(norm(x), output)

    chance = random.Random(1)
    running: list[dict[str, Any]] = []
    with torch.inference_mode():
        for _ in range(size.ticks):
            if len(running) < size.requests and chance.random() < 0.3:
                length = chance.randint(*size.prompts)
                cache: list[Any] = [None] * size.blocks
                prompt = torch.randint(vocabulary, (length,), device=device)
                logits = forward(prompt, torch.arange(length, device=device), [cache], [length])
                running.append(
                    {
                        "cache": cache,
                        "token": logits[-1:].argmax(-1),
                        "length": length,
                        "left": chance.randint(*size.answers),
                    }
                )
                del cache, prompt, logits
            if running:
                tokens = torch.cat([request["token"] for request in running])
                positions = torch.tensor([r["length"] for r in running], device=device)
                caches = [request["cache"] for request in running]
                logits = forward(tokens, positions, caches, [1] * len(running))
                for request, token in zip(running, logits.argmax(-1).split(1)):
                    request["token"] = token.clone()
                    request["length"] += 1
                    request["left"] -= 1
                del caches, logits, tokens, positions, token, request
            running = [request for request in running if request["left"] > 0]


PROGRAMS: dict[str, Callable[[Any, type[Size], str], None]] = {
    "transformer": train_transformer,
    "unet": train_unet,
    "server": serve,
}


def lines(events: Iterable[dict[str, Any]], thread: int) -> list[str]:
    """A memory history as a trace. What was live before it began is not in it."""
    live: dict[int, int] = {}
    result = [HEADER]
    for event in events:
        action, size, stream = event["action"], event["size"], event["stream"]
        if action == "alloc":
            pointer = event["addr"]
            live[pointer] = size
            action = "allocate"
        elif action == "free_completed" and event["addr"] in live:
            pointer = event["addr"]
            size = live.pop(pointer)
            action = "free"
        elif action == "oom":
            pointer = 0
            action = "allocate failure"
        else:
            continue
        seconds, micro = divmod(int(event.get("time_us", 0)), 1_000_000)
        at = f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{micro:06}"
        result.append(f"{thread},{at},{action},{pointer:#x},{size},{stream:#x}")
    return result


def pack(text: list[str]) -> bytes:
    """Compressed, and cut where it would be too large."""
    count = len(text)
    while True:
        data = gzip.compress(("\n".join(text[:count]) + "\n").encode(), 9, mtime=0)
        if len(data) <= LARGEST:
            break
        count = int(count * min(0.98, LARGEST / len(data)))
    if count < len(text):
        print(f"only the first {count} of {len(text)} lines fit", file=sys.stderr)
    return data


def record(name: str, path: str) -> None:
    import torch

    torch.manual_seed(1)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10_000_000)
    PROGRAMS[name](torch, Size, "cuda")
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    text = lines(events, threading.get_native_id())
    with open(path, "wb") as file:
        file.write(pack(text))
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"{path}: {len(text) - 1} operations, at most {peak:.2f} GiB live", file=sys.stderr)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        record(sys.argv[2], sys.argv[3])
        return
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    native = os.path.join(os.path.dirname(os.path.abspath(__file__)), "native.py")
    measured, failed = [], []
    for name in PROGRAMS:  # each in a process of its own, whose allocator is fresh
        path = os.path.join(folder, f"{name}.csv.gz")
        try:
            subprocess.run([sys.executable, __file__, "--one", name, path], check=True)
            done = subprocess.run(
                [sys.executable, native, path], check=True, stdout=subprocess.PIPE, text=True
            )
            measured.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps(measured[-1]))
        except subprocess.CalledProcessError as error:
            failed.append(f"{name}: {error}")
    with open(os.path.join(folder, "native.json"), "w") as file:
        json.dump(measured, file, indent=1)
        file.write("\n")
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
