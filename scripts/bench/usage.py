"""Imported by each script here: --help prints what the script says of itself."""

import sys
from pathlib import Path

if sys.argv[1:2] in (["-h"], ["--help"]):
    print((sys.modules["__main__"].__doc__ or "").strip())
    sys.exit()

STYLE = (Path(__file__).parent / "style.css").read_text()  # of the charts, light and dark
