"""Imported by each script here: --help prints what the script says of itself."""

import sys
import time
from typing import Callable

if sys.argv[1:2] in (["-h"], ["--help"]):
    print((sys.modules["__main__"].__doc__ or "").strip())
    sys.exit()


def timed(action: Callable[[], object]) -> float:
    """The seconds that it takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin
