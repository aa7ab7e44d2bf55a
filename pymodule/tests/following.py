"""A program that answers a line with a line."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OBEY = """
for line in sys.stdin:
    try:
        code = json.loads(line)
        try:
            code = compile(code, "asked", "eval")
        except SyntaxError:
            exec(code, globals())
            answer = None
        else:
            answer = eval(code, globals())
    except Exception as error:
        answer = f"{type(error).__name__} {getattr(error, 'code', '')}: {error}"
    print(json.dumps(answer, default=lambda made: type(made).__name__), flush=True)
"""
"""The end of a program that runs each line, which is code as JSON, and answers with its value."""


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
