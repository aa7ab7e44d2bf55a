"""python -m tms: where libtms.so is, and how to start a program with it."""

from __future__ import annotations

import argparse
import shlex
import sys

from ._errors import LibraryNotFoundError, NotPreloadedError
from ._library import library_path, load
from ._version import version


def main() -> int:
    """Prints to stdout; returns the exit status, 1 where there is no library."""
    parser = argparse.ArgumentParser(
        prog="python -m tms", description="Says where libtms.so is and how to preload it."
    )
    parser.add_argument("--path", action="store_true", help="print the path and nothing else")
    only_path = parser.parse_args().path
    try:
        path = library_path()
    except LibraryNotFoundError as error:
        print(f"tms: {error}", file=sys.stderr)
        return 1
    if only_path:
        print(path)
        return 0
    try:
        load()
        here = "yes"
    except NotPreloadedError:
        here = "no"
    print(f"tms {version}")
    print(f"library    {path}")
    print(f"preloaded  {here}")
    print(f"to use it  LD_PRELOAD={shlex.quote(path)} python your_script.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
