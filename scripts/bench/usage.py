"""Imported by each script here: --help prints what the script says of itself."""

import sys

if sys.argv[1:2] in (["-h"], ["--help"]):
    print((sys.modules["__main__"].__doc__ or "").strip())
    sys.exit()
