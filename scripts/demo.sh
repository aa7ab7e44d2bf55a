#!/usr/bin/env bash
# Trains, pauses, lends the memory out, resumes, trains on. On a GPU if PyTorch sees one, else on
# the simulator. The last line is a JSON object; the exit status says whether all of it is true.
set -euo pipefail
source "$(dirname "$0")/usage.sh"
[ $# -eq 0 ] || refuse "$@"
cd "$(dirname "$0")/.."
source scripts/current.sh
source scripts/require.sh
require_interpreter
case $(pwd -P) in *[[:space:]:]*) # LD_PRELOAD takes no such path
	plain=$(mktemp -d /tmp/tms.XXXXXX)
	trap 'rm -rf "$plain"' EXIT
	ln -s "$(pwd -P)" "$plain/tms"
	cd "$plain/tms"
	;;
esac

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

unset TMS_NO_INSTALL # is for scripts, and the library would warn of it
export PATH          # under env -i only the shell knows where programs are
TMS_LIBRARY=$PWD/build/lib/libtms.so PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}" "$python" -m tms demo
