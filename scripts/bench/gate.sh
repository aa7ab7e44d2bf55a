#!/bin/sh
# What the gate adds to a launch and a poll: on a libcuda that does nothing, and, where there is one, on the real one. Takes how
# many runs of each to make (21).
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
runs=${1:-21}
out=$PWD/build/bench
mkdir -p "$out/stub"
${CC:-gcc} -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$out/stub/libcuda.so.1" scripts/bench/stubdriver.c
${CC:-gcc} -O2 -Wall -Wextra -o "$out/gate" scripts/bench/gate.c "$out/stub/libcuda.so.1"
compare() { # LAUNCHES
	"$python" scripts/bench/inturn.py "$runs" "$out/gate" "$1" -- build/lib/libtms.so \
		"build/lib/libtms.so build/lib/libtms_reach.so"
}
printf 'a driver that does nothing\n'
LD_LIBRARY_PATH="$out/stub" compare 2000000
if ldconfig -p | grep -q 'libcuda\.so\.1'; then
	printf '\nthe driver\n'
	compare 200000
fi
