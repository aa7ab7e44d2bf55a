#!/bin/sh
# What a recording adds to an allocation and its free, which are two records: of a CUDA that does nothing, and in a
# region on the simulator. Prints nanoseconds for each pair, without a recording and with one.
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
out=$PWD/build/bench
mkdir -p "$out"
cc=${CC:-gcc}
$cc -std=gnu11 -O2 -pthread -o "$out/recording" preload/testdata/recording.c -Wl,-z,dynamic-undefined-weak \
	-Lbuild/sim -l:libcudart.so.13 -ldl
$cc -O2 -shared -fPIC -Wl,-soname,libcudart.so.13 -o "$out/libcudart.so.13" preload/testdata/nothing.c
timed() { # LIBRARIES REGION
	for trace in "" "$out/trace"; do
		env LD_PRELOAD="$PWD/build/lib/libtms.so" LD_LIBRARY_PATH="$1" TMS_INIT_ENABLE="$2" TMS_TRACE="$trace" \
			"$out/recording" timed - 1000
	done | paste -sd ' '
}
echo "a CUDA that does nothing: $(timed "$out" 0)"
echo "in a region, on the simulator: $(timed build/sim 1)"
