"""What the programs of test_reach have in common: how long they run, and what they print.

A program is called with a number of steps; 0 means until its standard input ends. Once it has begun
it prints "ready" and how many bytes of device memory it has taken. At its end it prints how many
steps it made and a digest of all that it computed, which must equal an undisturbed run's.
"""

from __future__ import annotations

import argparse
import hashlib
import select
import sys
from collections.abc import Iterator


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description)
    made.add_argument("steps", type=int, help="how many; 0: until standard input ends")
    return made


class Run:
    """A program's steps, and the digest of their results."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._made = 0
        self._digest = hashlib.sha256()

    def steps(self) -> Iterator[int]:
        number = 0
        while number < self._steps if self._steps else not self._is_ended():
            yield number
            number += 1
        self._made = number

    def _is_ended(self) -> bool:
        return bool(select.select([sys.stdin], [], [], 0)[0])

    def ready(self, taken: int) -> None:
        print(f"ready {taken}", flush=True)

    def note(self, *values: object) -> None:
        """Adds values to the digest, by their exact repr."""
        self._digest.update(repr(values).encode())

    def end(self) -> None:
        print(f"steps {self._made}\ndigest {self._digest.hexdigest()}", flush=True)
