"""Unpacks what compare.py reads of a wheel: sources, stubs, libraries and metadata.

unpack.py WHEEL FOLDER
"""

from __future__ import annotations

import re
import sys
import zipfile

_READ = re.compile(r".*(\.pyi?|\.so(\.\d+)*|\.c|/METADATA)")


def main() -> None:
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        names = [name for name in wheel.namelist() if _READ.fullmatch(name)]
        wheel.extractall(sys.argv[2], names)


if __name__ == "__main__":
    main()
