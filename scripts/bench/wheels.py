"""Some files of a wheel on a package index, without the rest of it.

    python3 wheels.py FOLDER PACKAGE==VERSION NAME...

The names are patterns, as "vllm/device_allocator/*.py". pip finds the wheel, so that its settings
count, and HTTP ranges read it: a wheel of an engine has hundreds of MiB. What lies in the folder
already is not read again.
"""

from __future__ import annotations

import fnmatch
import io
import json
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

import usage  # noqa: F401

BUFFER = 1 << 20


class Remote(io.RawIOBase):
    """A file behind HTTP that answers ranges."""

    def __init__(self, url: str) -> None:
        self.url, self.position = url, 0
        head = urllib.request.urlopen(urllib.request.Request(url, method="HEAD"))
        self.length = int(head.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.position = offset + (0, self.position, self.length)[whence]
        return self.position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self.length, self.position + len(buffer))
        if self.position >= end:
            return 0
        asked = {"Range": f"bytes={self.position}-{end - 1}"}
        with urllib.request.urlopen(urllib.request.Request(self.url, headers=asked)) as answer:
            if answer.status != 206:
                raise OSError(f"{self.url} does not answer ranges")
            data = answer.read()
        buffer[: len(data)] = data
        self.position += len(data)
        return len(data)


def place(package: str) -> str:
    """The URL of the wheel for this Python."""
    found = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed"]
        + ["--quiet", "--only-binary=:all:", "--use-feature=fast-deps", "--report=-", package],
        capture_output=True,
        text=True,
    )
    if found.returncode:
        raise SystemExit(f"pip finds no wheel of {package}:\n{found.stderr}")
    return str(json.loads(found.stdout)["install"][0]["download_info"]["url"])


def fetch(folder: Path, package: str, patterns: list[str]) -> Path:
    """A folder below the given one that has the files."""
    into = folder / package.replace("==", "-")
    if not into.exists():
        with zipfile.ZipFile(io.BufferedReader(Remote(place(package)), BUFFER)) as wheel:
            names = [n for n in wheel.namelist() if any(fnmatch.fnmatch(n, p) for p in patterns)]
            if not names:
                raise SystemExit(f"the wheel of {package} has none of {', '.join(patterns)}")
            part = into.with_name(into.name + ".part")
            wheel.extractall(part, names)
            part.rename(into)
    return into


if __name__ == "__main__":
    print(fetch(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
