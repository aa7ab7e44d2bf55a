"""Puts the torch_memory_saver of libtms on sys.path, before this environment's site-packages.

libtms_torch_memory_saver.pth imports this at each start of Python. No file of another distribution
is replaced: docs/rationale.md has the reasons ("Two packages of one name").
"""

import os
import site
import sys

_here = os.path.dirname(os.path.abspath(__file__))
for _folder in [_here, *sys.path, *site.getsitepackages()]:
    _dropin = os.path.join(_folder, "tms", "dropin")
    if os.path.isdir(_dropin):
        sys.path.insert(sys.path.index(_here) if _here in sys.path else len(sys.path), _dropin)
        break
