"""llama.cpp: answers from a small model with made-up weights, token by token, in CUDA graphs.

LLAMA_CPP names the folder with llama.cpp's libraries.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy
import steps

if "LLAMA_CPP" not in os.environ:
    raise ImportError("LLAMA_CPP names no folder with llama.cpp's libraries")
FOLDER = Path(os.environ["LLAMA_CPP"])


def library(name: str) -> Any:
    """libNAME.so, or libNAME.VERSION.so."""
    return ctypes.CDLL(str(next(FOLDER.glob(f"lib{name}.*so*"))), ctypes.RTLD_GLOBAL)


base, ggml, llama = library("ggml-base"), library("ggml"), library("llama")

LAYERS, WIDTH, HEADS, KEYS, INNER, WORDS = 8, 1024, 16, 4, 2816, 8192
CONTEXT, PROMPT, ANSWER = 65536, 40, 24
Q8_0 = 8
"""GGML_TYPE_Q8_0: blocks of 32 bytes and their scale, a half."""


class Parameters(ctypes.Structure):
    """At least as long as each struct that llama.cpp passes and returns by value."""

    _fields_ = [("words", ctypes.c_uint32 * 128), ("aligned", ctypes.c_uint64)]


def function(name: str, result: Any, *arguments: Any) -> Any:
    found = llama[name]
    found.restype, found.argtypes = result, arguments
    return found


@ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
def log(level: int, words: bytes, _: object) -> None:
    if level in (3, 4):  # warnings and errors
        sys.stderr.write(words.decode())


def write_model(path: Path) -> None:
    """A GGUF file: Llama's shape, no vocabulary but the number of tokens."""
    random = numpy.random.default_rng(7)

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    settings = {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "no_vocab",
        "llama.vocab_size": WORDS,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KEYS,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }
    kinds = {int: (4, "<I"), float: (6, "<f")}
    head = b""
    for name, value in settings.items():
        if isinstance(value, str):
            head += text(name) + struct.pack("<I", 8) + text(value)
        else:
            kind, form = kinds[type(value)]
            head += text(name) + struct.pack("<I", kind) + struct.pack(form, value)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd": (WIDTH, WORDS),
        "output_norm": (WIDTH,),
        "output": (WIDTH, WORDS),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.{name}": shape
            for name, shape in {
                "attn_norm": (WIDTH,),
                "attn_q": (WIDTH, WIDTH),
                "attn_k": (WIDTH, WIDTH // HEADS * KEYS),
                "attn_v": (WIDTH, WIDTH // HEADS * KEYS),
                "attn_output": (WIDTH, WIDTH),
                "ffn_norm": (WIDTH,),
                "ffn_gate": (WIDTH, INNER),
                "ffn_up": (WIDTH, INNER),
                "ffn_down": (INNER, WIDTH),
            }.items()
        }
    contents = []
    at = 0
    for name, shape in shapes.items():
        if len(shape) == 1:
            kind, data = 0, numpy.ones(shape, numpy.float32).tobytes()
        else:
            blocks = numpy.zeros(shape[0] * shape[1] // 32, [("scale", "<f2"), ("of", "i1", 32)])
            blocks["scale"] = 0.04 / 127
            blocks["of"] = random.integers(-127, 128, blocks["of"].shape)
            kind, data = Q8_0, blocks.tobytes()
        head += text(f"{name}.weight") + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, kind, at
        )
        contents.append(data + bytes(-len(data) % 32))
        at += len(contents[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(settings)) + head
    path.write_bytes(head + bytes(-len(head) % 32) + b"".join(contents))


class Model:
    def __init__(self, path: Path) -> None:
        handle, number = ctypes.c_void_p, ctypes.c_int32
        llama.llama_log_set(log, None)
        ggml.ggml_backend_load_all_from_path(os.fsencode(FOLDER))
        function("llama_backend_init", None)()
        assert function("llama_supports_gpu_offload", ctypes.c_bool)(), "llama.cpp sees no GPU"
        how = function("llama_model_default_params", Parameters)()
        load = function("llama_model_load_from_file", handle, ctypes.c_char_p, Parameters)
        self._model = load(os.fsencode(path), how)
        assert self._model, "the model cannot be loaded"
        how = function("llama_context_default_params", Parameters)()
        how.words[0] = CONTEXT
        begin = function("llama_init_from_model", handle, handle, Parameters)
        self._context = begin(self._model, how)
        assert self._context, "there is no context"
        self._batch = function("llama_batch_get_one", Parameters, ctypes.c_void_p, number)
        self._decode = function("llama_decode", number, handle, Parameters)
        self._scores = function(
            "llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), handle, number
        )
        self._forget = function("llama_memory_clear", None, handle, ctypes.c_bool)
        self._memory = function("llama_get_memory", handle, handle)(self._context)

    def answer(self, prompt: list[int], length: int) -> Any:
        """The scores of all words behind the prompt, and behind each word of the answer."""
        self._forget(self._memory, True)
        tokens, scores = prompt, []
        for _ in range(length):
            buffer = (ctypes.c_int32 * len(tokens))(*tokens)
            code = self._decode(self._context, self._batch(buffer, len(tokens)))
            assert code == 0, f"llama_decode: {code}"
            scores.append(
                numpy.ctypeslib.as_array(self._scores(self._context, -1), (WORDS,)).copy()
            )
            tokens = [int(scores[-1].argmax())]
        return numpy.array(scores)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_model(path)
        size = path.stat().st_size
        model = Model(path)
    random = numpy.random.default_rng(1)
    run = steps.Run(options.steps)
    for number in run.steps():
        prompt = random.integers(WORDS, size=PROMPT + 7 * (number % 5)).tolist()
        run.note(model.answer(prompt, ANSWER).tobytes())
        if number == 0:
            run.ready(size)
    run.end()


if __name__ == "__main__":
    main()
