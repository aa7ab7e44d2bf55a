#!/bin/sh
# Gated pauses on a GPU: what the tests do over the simulator (preload/testdata/gate.c, gatestorm.c), where that works
# on a device. Takes how many pauses the storm is to make (300), and the libcudart to use; without one, PyTorch's.
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
pauses=${1:-300} cudart=${2:-}
if [ -z "$cudart" ]; then
	cudart=$("${PYTHON:-python3}" -c '
import torch
torch.cuda.init()
print({line.split()[-1] for line in open("/proc/self/maps") if "libcudart.so" in line}.pop())')
fi
cudart=$(readlink -f "$cudart")
driver=$(ldconfig -p | sed -n 's/.*libcuda\.so\.1 .*=> //p' | head -1)
out=$PWD/build/bench
mkdir -p "$out"
for program in gate gatestorm; do
	${CC:-gcc} -std=gnu11 -g -O1 -pthread -o "$out/$program-host" preload/testdata/$program.c -Wl,-z,dynamic-undefined-weak \
		"$cudart" "$driver" -Wl,-rpath,"$(dirname "$cudart")" -ldl
done
export LD_PRELOAD="$PWD/build/lib/libtms.so $PWD/build/lib/libtms_reach.so"
for part in basic inside captured callback forked tags "two at once"; do
	echo "== $part"
	timeout 120 "$out/gate-host" "$part"
done
echo "== storm"
timeout 580 "$out/gatestorm-host" "$pauses"
