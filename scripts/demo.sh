#!/bin/sh
# Trains, pauses, lends the memory out, resumes, trains on. On a GPU if PyTorch sees one, else on
# the simulator. The last line is a JSON object; the exit status says whether all of it is true.
set -eu
. "$(dirname "$0")/usage.sh"
[ $# -eq 0 ] || refuse "$@"
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
library=$PWD/build/lib/libtms.so

say() { printf '%s\n' "demo: $*"; }
have_go() { command -v go >/dev/null 2>&1 || [ -x /usr/local/go/bin/go ]; }

say "looking for a GPU"
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
	device=gpu
	needed=$library
else
	device=simulator
	needed=$PWD/build/sim/libcuda.so.1
	export LD_LIBRARY_PATH="$PWD/build/sim" CUDASIM_DEVICES=1 CUDASIM_MEMORY=268435456
fi

if [ ! -e "$library" ] || [ ! -e "$needed" ]; then
	say "building"
	scripts/build.sh
else
	newer=$(find preload region forward vmm internal go.mod -type f ! -name '*_test.go' \
		-newer "$library" -print 2>/dev/null | head -n 1)
	if [ -n "$newer" ] && have_go; then
		say "building, because $newer is newer than the library"
		scripts/build.sh
	elif [ -n "$newer" ]; then
		say "$newer is newer than the library, but there is no Go here: taking the library as it is"
	fi
fi

case $device in
gpu) say "training with PyTorch on the GPU" ;;
simulator) say "PyTorch sees no GPU: training in plain Python on the simulator" ;;
esac
export PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}"
LD_PRELOAD="$library${LD_PRELOAD:+:$LD_PRELOAD}" \
	exec "$python" pymodule/examples/train.py --device "$device"
