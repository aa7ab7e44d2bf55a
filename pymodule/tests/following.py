"""A program that answers a line with a line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Follower:
    def __init__(self, command: Sequence[str | Path], **settings: Any) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **settings
        )

    def tell(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}: its words are above"
        return line.strip()

    def ask(self, words: str) -> str:
        self.tell(words)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
