"""Servers of engines that are given no size, under `tms run --share`: each takes what it is told.

Two start at the same moment, each with most of the GPU; another starts beside two programs that
have most of it. With -s the figures are printed. As for the other tests here, libtms.so is in
LD_PRELOAD. ENGINE_ASKS (8) is how often each engine is asked; ENGINE_REST (1) is how many seconds
the other programs rest after each step; an engine must start within ENGINE_UP (600) seconds.
ENGINE_VLLM and ENGINE_SGLANG name the folders with the packages of each, where one environment
cannot have both; without them, no test starts both.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keeping
import llama
import pytest
from device import torch_on_gpu
from plugin import installed
from reaching import Program, equal, of_session, started, tms
from test_reach import CONTENTS

torch = torch_on_gpu()

ASKS = int(os.environ.get("ENGINE_ASKS", "8"))
GIB = 1 << 30
TOTAL = torch.cuda.mem_get_info()[1]
HELD = min(24 * GIB, int(0.35 * TOTAL)) // GIB * GIB
"""Bytes of each program that is there before."""
UP = float(os.environ.get("ENGINE_UP", "600"))
REST = os.environ.get("ENGINE_REST", "1")
TOKENS = 16
OWN = {name: os.environ.get(f"ENGINE_{name.upper()}", "") for name in ("vllm", "sglang")}
"""The packages of each engine, with colons between the folders."""

# No flag says how much memory the engine may take. These make the start short and answers equal.
SERVERS = {
    "vllm": """
        -m vllm.entrypoints.cli.main serve {model} --port {port} --seed 42 --dtype bfloat16
        --no-enable-prefix-caching --generation-config vllm --compilation-config
        {{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","cudagraph_capture_sizes":[1]}}
    """,
    "sglang": """
        -m sglang.launch_server --model-path {model} --port {port} --random-seed 42
        --dtype bfloat16 --skip-tokenizer-init --attention-backend fa3 --sampling-backend pytorch
        --grammar-backend none --disable-radix-cache --cuda-graph-bs-decode 1
        --disable-prefill-cuda-graph --disable-flashinfer-autotune
    """,
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


class Server:
    """An engine behind HTTP, started as people start it."""

    def __init__(self, name: str, model: Path, log: Path) -> None:
        self.name, self.model, self.log, self.port = name, model, log, free_port()
        self.begun, self.seconds = time.monotonic(), 0.0
        words = SERVERS[name].format(model=model, port=self.port).split()
        variables = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        variables.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
        command: list[str | Path] = [
            keeping.TMS,
            "run",
            "--share",
            "--backup",
            "sparse",
            "--",
            sys.executable,
        ]
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [*command, *words],
                env={"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_HOST_IP": "127.0.0.1", **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def post(self, path: str, **asked: Any) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(asked).encode() if asked else None,
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def failure(self, what: str) -> AssertionError:
        """Describes what happened, with its log and the swaps of all programs so far."""
        swaps = [
            f"{process['pid']}: {device['pauses']['count']} pauses, {device['resumes']['count']} "
            f"resumes in {device['pauses']['seconds'] + device['resumes']['seconds']:.1f} s"
            for process in tms("ps", seconds=60)
            for device in process.get("stats", {}).get("devices") or []
        ]
        return AssertionError(
            f"{self.name}: {what}\n" + "\n".join([*swaps, self.log.read_text()[-6000:]])
        )

    def up(self) -> Server:
        """Waits until it answers its first request, which may take turns with others."""
        while self.process.poll() is None and time.monotonic() < self.begun + UP:
            with contextlib.suppress(urllib.error.URLError, OSError):
                self.post("/health")
                self.asks()
                self.seconds = time.monotonic() - self.begun
                return self
            time.sleep(0.5)
        raise self.failure(f"it has not started: exit status {self.process.poll()}")

    def asks(self) -> list[Any]:
        """Its answer to each prompt."""
        if self.name == "sglang":
            sampling = {"temperature": 0.0, "max_new_tokens": TOKENS, "ignore_eos": True}
            return [
                self.post("/generate", input_ids=prompt, sampling_params=sampling)["output_ids"]
                for prompt in llama.prompts()
            ]
        return [
            self.post(
                "/v1/completions",
                model=str(self.model),
                prompt=prompt,
                temperature=0.0,
                max_tokens=TOKENS,
                ignore_eos=True,
                return_token_ids=True,
            )["choices"][0]["token_ids"]
            for prompt in llama.prompts()
        ]

    def bytes(self) -> int:
        """The pausable memory of its processes, which may be paused."""
        try:
            return of_session(self.process.pid, "live_bytes")
        except AssertionError as failed:
            raise self.failure(str(failed)) from None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def with_tokenizer(folder: Path) -> None:
    """A word for each token: servers want a tokenizer, though requests have tokens."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"w{i}": i for i in range(3, 32000)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.fixture(scope="module")
def model() -> Path:
    folder = Path(llama.folder(with_weights=True))
    with_tokenizer(folder)
    return folder


@pytest.fixture
def servers(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Server]]:
    """Ends what a test adds; the plugins look installed."""
    installed(tmp_path)
    paths = f"{tmp_path}:{keeping.PYMODULE}:{os.environ.get('PYTHONPATH', '')}"
    monkeypatch.setenv("PYTHONPATH", paths)
    made: list[Server] = []
    yield made
    for server in made:
        server.kill()


def tell(server: Server, what: str) -> None:
    """Prints what it has taken, and what its own log says of memory."""
    print(
        f"\n{what}: {server.name} has {server.bytes() / GIB:.1f} of {TOTAL / GIB:.1f} GiB, ", end=""
    )
    print(f"first answer after {server.seconds:.1f} s")
    said = [
        line.strip()[-160:]
        for line in server.log.read_text().splitlines()
        if any(word in line for word in ("KV cache", "mem_fraction_static", "avail mem", "tms:"))
    ]
    print("\n".join(said[-8:]), flush=True)


@pytest.mark.parametrize("name", keeping.installed_engines())
def test_two_that_start_at_the_same_moment(
    name: str, model: Path, servers: list[Server], tmp_path: Path
) -> None:
    """Each has most of the GPU, answers, and goes on after the other has answered."""
    for i in range(2):
        servers.append(Server(name, model, tmp_path / f"{name}-{i}.log"))
    with ThreadPoolExecutor() as waiting:
        list(waiting.map(Server.up, servers))
    for server in servers:
        tell(server, "two at the same moment")
    assert min(server.bytes() for server in servers) >= 0.7 * TOTAL
    answer, *others = by_turns(servers)
    assert others == [answer], "the weights are the same"


def by_turns(servers: list[Server]) -> list[Any]:
    """Asks each again and again; its answers stay the same, and are returned."""
    expected, waits = [server.asks() for server in servers], []
    for _ in range(ASKS):
        for server, answer in reversed(list(zip(servers, expected))):
            begin = time.monotonic()
            assert server.asks() == answer
            waits.append(time.monotonic() - begin)
    print(f"{len(waits)} rounds of requests by turns: longest {max(waits):.2f} s, ", end="")
    print(f"median {sorted(waits)[len(waits) // 2]:.2f} s", flush=True)
    return expected


@pytest.mark.skipif(not all(OWN.values()), reason="ENGINE_VLLM and ENGINE_SGLANG name no folders")
def test_one_of_each_at_the_same_moment(
    model: Path, servers: list[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, own in OWN.items():
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{keeping.PYMODULE}:{own}")
        servers.append(Server(name, model, tmp_path / f"{name}.log"))
    with ThreadPoolExecutor() as waiting:
        list(waiting.map(Server.up, servers))
    for server in servers:
        tell(server, "one of each at the same moment")
    assert min(server.bytes() for server in servers) >= 0.7 * TOTAL
    by_turns(servers)


@pytest.mark.parametrize("name", keeping.installed_engines())
def test_beside_two_others(name: str, model: Path, servers: list[Server], tmp_path: Path) -> None:
    """The two were there first. They hold most of the GPU, and lose nothing."""
    rest = (str(HELD), "--rest", REST)
    options = ["--share", "--backup", "host"]
    with contextlib.ExitStack() as ends:
        others: list[Program] = [
            ends.enter_context(started(CONTENTS, 0, rest, options=options, seconds=UP + 120))
            for _ in range(2)
        ]
        for other in others:
            other.ready()
        servers.append(Server(name, model, tmp_path / f"{name}.log"))
        engine = servers[0].up()
        tell(engine, f"beside two that hold {HELD / GIB:.0f} GiB each")
        assert engine.bytes() >= 0.7 * TOTAL
        expected, waits = engine.asks(), []
        for _ in range(ASKS):
            for other in others:
                other.check()
            begin = time.monotonic()
            assert engine.asks() == expected
            waits.append(time.monotonic() - begin)
        print(f"{ASKS} rounds of requests beside them: longest {max(waits):.2f} s", flush=True)
        engine.kill()
        said = [other.end() for other in others]
    for found in said:
        equal(CONTENTS, found, [rest[0], "--rest", "0"], seconds=120)
