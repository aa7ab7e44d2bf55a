"""Puts the torch_memory_saver of libtms on sys.path, before this environment's site-packages.

Python calls this at each start, because of libtms_torch_memory_saver.pth, from 3.15 on .start. No
file of another distribution is replaced: docs/design/packages.md says why.
"""

import os
import site
import sys


def enter() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in [here, *sys.path, *site.getsitepackages()]:
        dropin = os.path.join(folder, "tms", "dropin")
        if os.path.isdir(dropin):
            sys.path.insert(sys.path.index(here) if here in sys.path else len(sys.path), dropin)
            return
