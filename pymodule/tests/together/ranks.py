"""Ranks of a group as processes over the simulator, each of which follows commands.

With PyTorch if it is installed, otherwise with fake/.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
if __name__ != "__main__":
    from following import Follower
    from simulator import PYMODULE, environment

    if importlib.util.find_spec("torch") is None:
        sys.path.insert(0, str(HERE / "fake"))

WITHIN = 600
"""Seconds in which a rank must answer a command."""


class Told(Exception):
    """What a rank raised. `kind` is the name of its class."""

    def __init__(self, kind: str, words: str) -> None:
        super().__init__(words)
        self.kind = kind


class Ranks:
    """A number of ranks of one group. `own` has environment variables of single ranks.

    Args:
        store_of: the rank that has the store's server, or -1 for this process.
    """

    def __init__(
        self,
        count: int,
        store_of: int = -1,
        own: dict[int, dict[str, str]] | None = None,
        **variables: str,
    ) -> None:
        import torch
        import torch.distributed as dist

        # The simulator's runtime, by a name other than that of PyTorch's own.
        its_own = str(getattr(getattr(torch, "version", None), "cuda", None) or "12")
        cudart = "libcudart.so.12" if its_own.startswith("13") else "libcudart.so.13"
        self.server = None
        port = 0
        if store_of < 0:
            self.server = dist.TCPStore(
                "127.0.0.1", 0, world_size=None, is_master=True, wait_for_workers=False
            )
            port = self.server.port
        self._ranks: list[Follower] = []
        inherited = environment()
        paths = [str(PYMODULE), str(TESTS), str(HERE)]
        if str(HERE / "fake") in sys.path:
            paths.append(str(HERE / "fake"))
        for rank in range(count):
            command = [sys.executable, HERE / "ranks.py", str(rank), str(count), str(store_of)]
            for_rank = {
                **inherited,
                "PYTHONPATH": ":".join(paths),
                "LOCAL_RANK": str(rank),
                "TESTS_CUDART": cudart,
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                **variables,
                **(own or {}).get(rank, {}),
            }
            self._ranks.append(Follower(command, env=for_rank))
        if store_of >= 0:
            self.tell(store_of, "0")
            port = int(self._answer(store_of)["port"])
        self.living = list(range(count))
        for rank in self.living:
            if rank != store_of:
                self.tell(rank, str(port))
        for rank in self.living:
            assert self._answer(rank) == {"ready": True}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *exception: object) -> None:
        for rank in self._ranks:
            rank.kill()

    def pid(self, rank: int) -> int:
        return self._ranks[rank].process.pid

    def tell(self, rank: int, code: str) -> None:
        """Makes a rank begin to run Python code."""
        self._ranks[rank].tell(json.dumps(code))

    def answer(self, rank: int) -> Any:
        """Returns the value of the code's last line, if that is an expression. Raises: Told."""
        answer = self._answer(rank)
        if "kind" in answer:
            raise Told(answer["kind"], answer["words"])
        return answer["value"]

    def all(self, code: str) -> list[Any]:
        """Makes all living ranks run the code at once; a Told is an answer too."""
        for rank in self.living:
            self.tell(rank, code)
        return [self.outcome(rank) for rank in self.living]

    def outcome(self, rank: int) -> Any:
        try:
            return self.answer(rank)
        except Told as told:
            return told

    def one(self, rank: int, code: str) -> Any:
        self.tell(rank, code)
        return self.answer(rank)

    def dead(self, rank: int) -> None:
        """Waits for a rank that was to be killed."""
        assert self._ranks[rank].process.wait(WITHIN) == -signal.SIGKILL
        self.living.remove(rank)

    def _answer(self, rank: int) -> dict[str, Any]:
        timer = threading.Timer(WITHIN, self._ranks[rank].process.kill)
        timer.start()
        try:
            return dict(json.loads(self._ranks[rank].answer()))
        finally:
            timer.cancel()


def _rank() -> None:
    """The program of a rank."""
    import ast

    import cuda  # noqa: F401  # before torch, which brings a runtime of another name with it
    import torch.distributed as dist

    rank, count, store_of = (int(each) for each in sys.argv[1:])
    answers, sys.stdout = sys.stdout, sys.stderr

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    port = int(json.loads(sys.stdin.readline()))
    store = dist.TCPStore(
        "127.0.0.1", port, world_size=None, is_master=rank == store_of, wait_for_workers=False
    )
    if rank == store_of:
        say({"port": store.port})
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
    say({"ready": True})
    names: dict[str, Any] = {"rank": rank, "dist": dist}
    exec(  # noqa: S102
        "import os, signal, cuda, tms, tms.distributed as together\n"
        "from tms import _meeting, _together",
        names,
    )
    for line in sys.stdin:
        try:
            tree = ast.parse(json.loads(line))
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "told", "exec"), names)  # noqa: S102
            value = None
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "told", "eval"), names)  # type: ignore[attr-defined]  # noqa: S307
            say({"value": value})
        except BaseException as error:
            if os.environ.get("TESTS_TRACE"):
                traceback.print_exc()
            say({"kind": type(error).__name__, "words": str(error)})


if __name__ == "__main__":
    _rank()
