"""The first token after a wake: a resume in the order of layers, beside the plain resume.

    scripts/bench.sh order [--layers 32] [--tokens 512 8192 16384] [--repetitions 3]

A model in the shapes of Llama 3.1 8B (15 GiB in bf16, PyTorch in eager mode) sleeps with its
contents in host memory. It wakes, and runs one prompt. For each length of the prompt:

- compute: the prompt, while the model is awake;
- copy: as many bytes as the model has, from pinned memory to the device, by plain copies;
- resume: a plain resume alone;
- plain: a plain resume, then the prompt;
- order: a resume in the order in which the modules first ran, and the prompt on its heels.

"over" is what order takes beyond the longer of compute and copy. Host memory is kept for the next
sleep (TMS_RETAIN_CPU_BACKUP), and then given back at each wake. Every result is compared bit by bit
with that of the model before its first sleep; a difference ends the run with status 1. Needs
PyTorch, and build/ as it is, no Go. Prints a table, and last, JSON; both go to $OUT, if it is set.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any, Callable

import usage  # noqa: F401
from usage import timed

ROOT = Path(__file__).resolve().parents[2]
GIB = 1 << 30
WIDTH, INNER, WORDS, HEADS, KEYS, HEAD = 4096, 14336, 128256, 32, 8, 128


def start_again() -> None:
    """With libtms.so and the gate, which a process gets only at its start."""
    libraries = [str(ROOT / "build" / "lib" / name) for name in ("libtms.so", "libtms_reach.so")]
    paths = [str(ROOT / "pymodule"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {"LD_PRELOAD": " ".join(libraries), "PYTHONPATH": ":".join(paths)}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment})


def model_of(torch: Any, layers: int, longest: int) -> Any:
    """The model, made within a region."""
    nn, functional = torch.nn, torch.nn.functional

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            return functional.rms_norm(x, (WIDTH,), self.weight, 1e-5)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.between = Norm(), Norm()
            self.q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
            self.k = nn.Linear(WIDTH, KEYS * HEAD, bias=False)
            self.v = nn.Linear(WIDTH, KEYS * HEAD, bias=False)
            self.o = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
            self.gate = nn.Linear(WIDTH, INNER, bias=False)
            self.up = nn.Linear(WIDTH, INNER, bias=False)
            self.down = nn.Linear(INNER, WIDTH, bias=False)

        def forward(self, x: Any, cosine: Any, sine: Any) -> Any:
            y = self.before(x)

            def heads(projected: Any) -> Any:
                return projected.view(1, -1, projected.shape[-1] // HEAD, HEAD).transpose(1, 2)

            def turned(z: Any) -> Any:
                a, b = z.chunk(2, -1)
                return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1)

            q, k, v = turned(heads(self.q(y))), turned(heads(self.k(y))), heads(self.v(y))
            k, v = (z.repeat_interleave(HEADS // KEYS, 1) for z in (k, v))
            attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.o(attended.transpose(1, 2).reshape(1, -1, HEADS * HEAD))
            y = self.between(x)
            return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.ModuleList(Layer() for _ in range(layers))
            self.last, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
            powers = torch.arange(HEAD // 2, dtype=torch.float32) / (HEAD // 2)
            angles = torch.outer(torch.arange(longest, dtype=torch.float32), 500000.0**-powers)
            self.register_buffer("cosine", angles.cos().to(torch.bfloat16))
            self.register_buffer("sine", angles.sin().to(torch.bfloat16))

        def forward(self, prompt: Any) -> Any:
            tokens = prompt.shape[1]
            cosine, sine = self.cosine[:tokens], self.sine[:tokens]
            x = self.embed(prompt)
            for layer in self.layers:
                x = layer(x, cosine, sine)
            return self.head(self.last(x[:, -1:]))

    model = Model()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.02)
    return model.requires_grad_(False)


def link(torch: Any, size: int) -> float:
    """The seconds in which plain copies bring that number of bytes to the device."""
    host = torch.empty(GIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(GIB, dtype=torch.uint8, device="cuda")

    def copies() -> None:
        for _ in range(16):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()

    copies()
    return timed(copies) * size / (16 * GIB)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 8192, 16384])
    parser.add_argument("--repetitions", type=int, default=3)
    asked = parser.parse_args()
    if "libtms_reach.so" not in os.environ.get("LD_PRELOAD", ""):
        start_again()
    import tms
    import torch

    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    torch.set_grad_enabled(False)
    with tms.region("weights", backup="host"), torch.device("cuda"):
        model = model_of(torch, asked.layers, max(asked.tokens))
    tensors = [*model.parameters(), *model.buffers()]
    size = sum(tensor.nbytes for tensor in tensors)
    with tms.first_runs(model) as order:
        model(torch.zeros((1, 8), dtype=torch.long, device="cuda"))
    copy = link(torch, size)
    torch.cuda.empty_cache()

    def wakes(prompt: Any, resume: Callable[[], object] | None, run: bool) -> tuple[float, Any]:
        """The seconds of a wake and a prompt, and the result."""
        result: list[Any] = []

        def work() -> None:
            if resume is not None:
                resume()
            if run:
                result.append(model(prompt).cpu())  # the first token is a maximum of it

        if resume is not None:
            tms.pause("weights")
        torch.cuda.synchronize()
        return timed(work), result[0] if result else None

    ways: dict[str, tuple[Callable[[], object] | None, bool]] = {
        "compute": (None, True),
        "resume": (lambda: tms.resume("weights"), False),
        "plain": (lambda: tms.resume("weights"), True),
        "order": (lambda: tms.resume("weights", order=order), True),
    }
    retain = ctypes.CDLL(None).tms_set_retain_cpu_backup
    retain.argtypes, retain.restype = [ctypes.c_bool], None
    rows: list[dict[str, Any]] = []
    lines = [
        f"{size / GIB:.1f} GiB, {asked.layers} layers, {torch.cuda.get_device_name()}, PyTorch "
        f"{torch.__version__}; median of {asked.repetitions}, in seconds",
        f"{'host memory':<12}{'tokens':>7}{'compute':>9}{'copy':>8}{'resume':>8}{'plain':>8}"
        f"{'order':>8}{'over':>7}",
    ]
    print("\n".join(lines), flush=True)
    for kept in (True, False):
        retain(kept)
        tms.trim()
        for tokens in asked.tokens:
            prompt = torch.randint(WORDS, (1, tokens), device="cuda")
            _, wanted = wakes(prompt, None, True)  # and warms up
            times: dict[str, list[float]] = {way: [] for way in ways}
            wakes(prompt, ways["plain"][0], True)  # host memory is there then, if it is kept
            for _ in range(asked.repetitions):
                for way, (resume, run) in ways.items():
                    seconds, result = wakes(prompt, resume, run)
                    times[way].append(seconds)
                    if result is not None and not torch.equal(result, wanted):
                        sys.exit(f"{way}: the result for {tokens} tokens differs")
            row: dict[str, Any] = {"kept": kept, "tokens": tokens, "copy": copy, "all": times}
            row.update({way: statistics.median(each) for way, each in times.items()})
            row["over"] = row["order"] / max(row["compute"], copy) - 1
            rows.append(row)
            lines.append(
                f"{'kept' if kept else 'given back':<12}{tokens:>7}{row['compute']:>9.3f}"
                f"{copy:>8.3f}{row['resume']:>8.3f}{row['plain']:>8.3f}{row['order']:>8.3f}"
                f"{row['over']:>+7.0%}"
            )
            print(lines[-1], flush=True)
    lines.append(json.dumps({"bytes": size, "layers": asked.layers, "rows": rows}))
    print(lines[-1])
    if os.environ.get("OUT"):
        (Path(os.environ["OUT"]) / "order.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
