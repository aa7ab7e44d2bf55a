"""The command tms, also python -m tms: where libtms.so is, a demo; bin/tms does the rest."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from . import _demo, _dropin
from ._errors import NotPreloadedError, TmsError
from ._library import find, library_path, load
from ._version import version

_HELP = """\
usage: tms [COMMAND]         pausable GPU memory

  tms                        says where libtms.so is and how to start a program with it
  tms --path                 the path of libtms.so, for LD_PRELOAD
  tms demo                   a training that lends its GPU memory out; simulated without a GPU
"""


def main() -> int:
    """Prints to stdout; returns the exit status, 1 where there is no library."""
    arguments = sys.argv[1:]
    try:
        if arguments == ["--path"]:
            print(library_path())
            return 0
        if arguments == ["demo"]:
            return _demo.run()
        if not arguments:
            return _status()
        program = find("bin", "tms")
        if arguments[0] in ("-h", "--help", "help") and len(arguments) == 1:
            print(_HELP, flush=True)
            return subprocess.run([program, "--help"], check=False).returncode
        if arguments[0] == "doctor":
            os.environ["_TMS_DOCTOR_FINDING"] = _dropin.finding()
        os.execv(program, ["tms", *arguments])
    except TmsError as error:
        print(f"tms: {error}", file=sys.stderr)
        return 1


def _status() -> int:
    path = library_path()
    try:
        load()
        here = "yes"
    except NotPreloadedError:
        here = "no"
    print(f"tms {version}")
    print(f"library    {path}")
    print(f"preloaded  {here}")
    print(f"to use it  LD_PRELOAD={shlex.quote(path)} python your_script.py")
    print("to try it  tms demo          tms --help has the other commands")
    return 0


if __name__ == "__main__":
    sys.exit(main())
