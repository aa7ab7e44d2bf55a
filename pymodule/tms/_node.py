"""A rank's links to the other ranks of its machine: local sockets to the first of them.

That one, the leader, hears the others, speaks for them with the leaders of other machines
(`_meeting.py`, over the store), and hands them what was decided. Nothing rests on a link: who has
no answer by one in a moment turns to the store, where all is written that counts. So a link is
dropped at the first trouble, and what comes too late by it is passed over.

The sockets are abstract ones, which only processes of this machine (network namespace) reach; those
of other users are not listened to.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import socket
import struct
import time
from typing import Any

_LARGEST = 1 << 16
"""Bytes of a packet. What is larger goes by the store."""

Places = dict[str, tuple[str, list[int]]]
"""Of each machine where its first rank listens, and its ranks."""


class Node:
    """What one rank has of its machine. There are no links before `arrange`.

    Args:
        rank: of this process in the group.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._expected: set[int] = set()
        """Of a leader: the ranks that are waited for."""
        self._others = 0
        """Of a leader: how many there are."""
        self._links: dict[int, tuple[socket.socket, int]] = {}
        """Of a leader: by descriptor, the rank that is there."""
        self._poll = select.poll()
        """Of a leader: those, and what it listens at."""
        self._spoken: dict[int, tuple[str, Any]] = {}
        """Of a leader: what each rank said last, and of which key."""
        self._leader: socket.socket | None = None
        name = secrets.token_hex(16)
        self._listening: socket.socket | None = None
        try:
            self._listening = _socket()
            self._listening.bind(_address(name))
            self._listening.listen(1024)
            self.places: Places = {machine(rank): (name, [rank])}
        except OSError:
            self.places = {f"rank {rank}": ("", [rank])}

    def arrange(self, name: str, ranks: list[int]) -> None:
        """Makes the links: to the first of these ranks, or, as that, to the others."""
        if ranks[0] == self._rank and len(ranks) > 1 and self._listening:
            self._poll.register(self._listening, select.POLLIN)
            self._expected = set(ranks[1:])
            self._others = len(ranks) - 1
            return
        self._end()
        if ranks[0] == self._rank:
            return
        try:
            self._leader = _socket()
            self._leader.connect(_address(name))
            if not _of_this_user(self._leader):
                raise PermissionError
            self._leader.send(_packet([self._rank, "", None]))
        except OSError:
            self._leave()

    def ask(self, key: str, vote: Any, seconds: float) -> Any:
        """Says something to the leader; what was decided of the key. None: the store has it."""
        packet = _packet([self._rank, key, vote])
        until = time.monotonic() + seconds
        try:
            if self._leader is None:
                return None
            if len(packet) > _LARGEST:
                self._leader.send(_packet([self._rank, key, None]), socket.MSG_DONTWAIT)
                return None
            self._leader.send(packet, socket.MSG_DONTWAIT)
            while (left := until - time.monotonic()) > 0:
                self._leader.settimeout(left)
                decided, decision = _unpacked(self._leader.recv(_LARGEST))
                if decided == key:
                    return decision
        except socket.timeout:
            pass
        except OSError:
            self._leave()
        return None

    def hear(self, key: str, seconds: float) -> dict[int, Any]:
        """What the others say of a key, for a leader. Who is missing says it by the store."""
        until = time.monotonic() + seconds
        while len(self._expected) < self._others and self._take(0):
            pass  # one that was given up may have come
        while self._silent(key) and self._take(until):
            pass
        if self._silent(key):
            self.tell(key, None)
            self._expected &= {rank for _, rank in self._links.values()}  # others have no link
        return {rank: vote for rank, (of, vote) in self._spoken.items() if of == key and vote}

    def tell(self, key: str, decision: Any) -> None:
        """Hands the others what was decided of a key, for a leader. None: the store has it."""
        if self._links:
            packet = _packet([key, decision])
            if len(packet) > _LARGEST:
                packet = _packet([key, None])
            for number, (link, _) in list(self._links.items()):
                try:
                    link.send(packet)
                except OSError:
                    self._drop(number)

    def _silent(self, key: str) -> bool:
        return any(self._spoken.get(rank, ("",))[0] != key for rank in self._expected)

    def _take(self, until: float) -> bool:
        """Takes what has come, or comes in time; False when nothing does."""
        ready = self._poll.poll(1000 * max(0.0, until - time.monotonic()))
        for number, _ in ready:
            if number in self._links:
                self._receive(number)
            elif self._listening:
                self._accept(self._listening)
        return bool(ready)

    def _accept(self, listening: socket.socket) -> None:
        try:
            link, _ = listening.accept()
        except OSError:  # no descriptors are left, for one
            self._end()
            return
        if _of_this_user(link):
            link.setblocking(False)
            self._links[link.fileno()] = link, -1
            self._poll.register(link, select.POLLIN)
        else:
            link.close()

    def _receive(self, number: int) -> None:
        link, _ = self._links[number]
        try:
            rank, key, vote = _unpacked(link.recv(_LARGEST))
        except BlockingIOError:
            return
        except OSError:
            self._drop(number)
            return
        self._links[number] = link, rank
        self._expected.add(rank)
        self._spoken[rank] = key, vote

    def _drop(self, number: int) -> None:
        link, rank = self._links.pop(number)
        self._poll.unregister(number)
        link.close()
        self._expected.discard(rank)

    def _end(self) -> None:
        for number in list(self._links):
            self._drop(number)
        self._expected.clear()
        if self._listening:
            with contextlib.suppress(KeyError):
                self._poll.unregister(self._listening)
            self._listening.close()
        self._listening = None

    def _leave(self) -> None:
        if self._leader:
            self._leader.close()
        self._leader = None


def joined(all_places: list[Places]) -> Places:
    """Those of several ranks, as if of one."""
    found: Places = {}
    for places in all_places:
        for where, (name, ranks) in places.items():
            other, others = found.get(where, (name, []))
            first = name if not others or min(ranks) < min(others) else other
            found[where] = first, sorted(others + ranks)
    return found


def machine(rank: int) -> str:
    """Names what the local sockets of a rank's process reach."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return f"{socket.gethostname()}/{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return f"rank {rank}"


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.setblocking(False)
    return made


def _address(name: str) -> bytes:
    return b"\0tms/" + name.encode()


def _of_this_user(link: socket.socket) -> bool:
    wanted = struct.Struct("3i")
    got = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, wanted.size)
    return bool(wanted.unpack(got)[1] == os.geteuid())


def _packet(words: list[Any]) -> bytes:
    return json.dumps(words).encode()


def _unpacked(packet: bytes) -> Any:
    """Raises: ConnectionError: there is none, for the other side has ended."""
    if not packet:
        raise ConnectionError
    return _decode(packet.decode())[0]


_decode = json.JSONDecoder().raw_decode  # half of the time of loads, which looks for an encoding
