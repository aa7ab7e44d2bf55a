#!/bin/sh
# What a cudaMalloc and a cudaFree outside any region cost under libtms.so, and under an interposer
# that takes a lock and a hash map, on a libcudart that does nothing and on the real one. Takes the
# libcudart to use; without one, PyTorch's.
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
cudart=${1:-}
if [ -z "$cudart" ]; then
	cudart=$("$python" -c '
import torch
torch.cuda.init()
print({line.split()[-1] for line in open("/proc/self/maps") if "libcudart.so" in line}.pop())')
fi
cudart=$(readlink -f "$cudart")
out=$PWD/build/bench
mkdir -p "$out/stub"
${CC:-gcc} -O2 -Wall -Wextra -shared -fPIC -Wl,-soname,libcudart.so.13 -o "$out/stub/libcudart.so.13" \
	scripts/bench/stub.c
${CXX:-g++} -O2 -Wall -Wextra -shared -fPIC -o "$out/lockmap.so" scripts/bench/lockmap.cpp -ldl
for libcudart in "$out/stub/libcudart.so.13" "$cudart"; do
	printf '\n%s\n' "$libcudart"
	${CC:-gcc} -O2 -Wall -o "$out/passthrough" scripts/bench/passthrough.c "$libcudart" \
		-Wl,-rpath,"$(dirname "$libcudart")"
	"$python" scripts/bench/inturn.py 21 "$out/passthrough" -- build/lib/libtms.so "$out/lockmap.so"
done
