"""A process group that can only name its ranks, and a store like TCPStore."""

from __future__ import annotations

import contextlib
import datetime
import threading
from multiprocessing.connection import Client, Connection, Listener
from types import SimpleNamespace
from typing import Any, NamedTuple

from . import distributed_c10d


class DistError(RuntimeError):
    """What the real store raises, with its real base."""


class _State:
    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()

    def serve(self, listener: Listener) -> None:
        while True:
            connection = listener.accept()
            threading.Thread(target=self.answer, args=(connection,), daemon=True).start()

    def answer(self, connection: Connection) -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                name, arguments = connection.recv()
                with self.changed:
                    answer = getattr(self, name)(*arguments)
                    self.changed.notify_all()
                connection.send(answer)

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        return self.values.get(key, expected)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def wait(self, keys: list[str], seconds: float) -> bool:
        return self.changed.wait_for(lambda: self.check(keys), seconds)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        assert self.wait(keys, 600)
        return [self.values[key] for key in keys]

    def num_keys(self) -> int:
        return len(self.values)


class TCPStore:
    def __init__(
        self,
        host: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        wait_for_workers: bool = True,
    ) -> None:
        self.host = host
        if is_master:
            listener = Listener((host, port), backlog=1024)
            port = listener.address[1]
            threading.Thread(target=_State().serve, args=(listener,), daemon=True).start()
        self.port = port
        self._lock = threading.Lock()  # a waiting thread keeps others out, as in the real one
        self._connection = Client((host, port))

    def clone(self) -> TCPStore:
        return TCPStore(self.host, self.port)

    def _ask(self, name: str, *arguments: Any) -> Any:
        try:
            with self._lock:
                self._connection.send((name, arguments))
                return self._connection.recv()
        except (OSError, EOFError) as lost:
            raise DistError(f"connection was lost: {lost}") from lost
        except KeyboardInterrupt:  # before the answer, for which the next would be taken
            self._connection = Client((self.host, self.port))
            raise

    def set(self, key: str, value: str) -> None:
        self._ask("set", key, value.encode())

    def get(self, key: str) -> bytes:
        return self.multi_get([key])[0]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._ask("compare_set", key, expected.encode(), desired.encode())  # type: ignore[no-any-return]

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete_key", key))

    def check(self, keys: list[str]) -> bool:
        return bool(self._ask("check", keys))

    def wait(self, keys: list[str], timeout: datetime.timedelta) -> None:
        if not self._ask("wait", keys, timeout.total_seconds()):
            raise DistError(f"wait timeout after {timeout}, keys: {keys}")

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return self._ask("multi_get", keys)  # type: ignore[no-any-return]

    def num_keys(self) -> int:
        return int(self._ask("num_keys"))


class PrefixStore:
    def __init__(self, prefix: str, store: Any) -> None:
        self.underlying_store = store
        self._prefix = prefix

    def clone(self) -> PrefixStore:
        return PrefixStore(self._prefix, self.underlying_store.clone())

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.underlying_store, name)

        def prefixed(keys: Any, *arguments: Any) -> Any:
            if isinstance(keys, list):
                return function([f"{self._prefix}/{key}" for key in keys], *arguments)
            return function(f"{self._prefix}/{keys}", *arguments)

        return prefixed


class ProcessGroup(NamedTuple):
    group_name: str
    ranks: list[int]
    rank: int


group = SimpleNamespace(WORLD=None)
_made = 0


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return group.WORLD is not None


def init_process_group(backend: str, store: Any, rank: int, world_size: int) -> None:
    assert backend == "gloo"
    distributed_c10d.default_store = PrefixStore("default_pg", store)
    group.WORLD = ProcessGroup("0", list(range(world_size)), rank)


def destroy_process_group() -> None:
    group.WORLD = None


def new_group(ranks: list[int]) -> ProcessGroup:
    global _made
    _made += 1
    return ProcessGroup(str(_made), ranks, group.WORLD.rank)


def get_rank(of: ProcessGroup | None = None) -> int:
    of = of or group.WORLD
    return of.ranks.index(of.rank) if of.rank in of.ranks else -1


def get_process_group_ranks(of: ProcessGroup) -> list[int]:
    return of.ranks
