"""python -m tms: becomes the command tms."""

from __future__ import annotations

import os
import sys

from ._errors import LibraryNotFoundError
from ._library import command_path


def main() -> None:
    """Never returns: the process executes the command."""
    os.environ["_TMS_PYTHON"] = sys.executable  # for what the command does in Python
    try:
        path = command_path()
    except LibraryNotFoundError as error:
        sys.exit(f"tms: {error}")
    try:
        os.execv(path, ["tms", *sys.argv[1:]])
    except OSError as error:
        sys.exit(
            f"tms: {path} cannot be run: {error.strerror}. Where its file system is mounted with "
            "noexec, install tms elsewhere"
        )


if __name__ == "__main__":
    main()
