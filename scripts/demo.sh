#!/bin/sh
# Trains, pauses, lends the memory out, resumes, trains on. On a GPU if PyTorch sees one, else on
# the simulator. The last line is a JSON object; the exit status says whether all of it is true.
set -eu
. "$(dirname "$0")/usage.sh"
[ $# -eq 0 ] || refuse "$@"
cd "$(dirname "$0")/.."
. scripts/current.sh
python=${PYTHON:-python3}
command -v "$python" >/dev/null 2>&1 ||
	{ echo "missing: Python 3.9 or newer, $python (Debian, Ubuntu: apt-get install python3)." >&2; exit 1; }

say() { printf '%s\n' "demo: $*"; }

newer=$(newer_source build)
if [ "$newer" = nothing ]; then
	say "building"
	scripts/build.sh
elif [ -n "$newer" ] && have_go; then
	say "building, because $newer is newer than the library"
	scripts/build.sh
elif [ -n "$newer" ]; then
	say "$newer is newer than the library, but there is no Go here: taking the library as it is"
fi

PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m tms demo
