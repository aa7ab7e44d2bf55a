#!/bin/sh
# What the gate adds to a launch and a poll: on a libcuda that does nothing, and, where there is one, on the real one. Takes how
# many runs of each to make (21).
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
out=$PWD/build/bench
mkdir -p "$out/stub"
${CC:-gcc} -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$out/stub/libcuda.so.1" scripts/bench/stubdriver.c
${CC:-gcc} -O2 -Wall -Wextra -o "$out/gate" scripts/bench/gate.c "$out/stub/libcuda.so.1"
printf 'a driver that does nothing\n'
LD_LIBRARY_PATH="$out/stub" "$python" scripts/bench/gate.py "$out/gate" "${1:-21}" 2000000 build/lib
if ldconfig -p | grep -q 'libcuda\.so\.1'; then
	printf '\nthe driver\n'
	"$python" scripts/bench/gate.py "$out/gate" "${1:-21}" 200000 build/lib
fi
