#!/bin/sh
# The tests that need a GPU and PyTorch, the demo, and what passing through costs; with build/ as
# it is, no Go needed. Logs go to $OUT, or build/gpu-results. Fails where there is no GPU. With several
# GPUs and pytest-xdist each GPU runs a part of the tests, then all GPUs run the tests that need several.
# TESTS_PAUSES=1000 pauses a training so often from outside; 30 times else.
set -eu
. "$(dirname "$0")/usage.sh"
[ $# -eq 0 ] || refuse "$@"
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
library=$PWD/build/lib/libtms.so
out=${OUT:-$PWD/build/gpu-results}
mkdir -p "$out"
export PYTHONPATH="$PWD/pymodule:$PWD/pymodule/dropin${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
failed=

# step NAME COMMAND... logs to $out/NAME.log and goes on after a failure.
step() {
	name=$1
	shift
	printf '\n== %s\n' "$name"
	begin=$(date +%s)
	status=$({ { "$@" 2>&1 || echo "$?" >&3; } | tee "$out/$name.log" >&4; } 3>&1) 4>&1
	printf '== %s: %s in %s s\n' "$name" "${status:+FAILED with status }${status:-passed}" \
		"$(($(date +%s) - begin))"
	if [ -n "$status" ]; then
		failed="$failed $name"
	fi
}

# tests NAME ARGUMENT... is a step of pytest with the arguments.
tests() {
	name=$1
	shift
	step "$name" env LD_PRELOAD="$library" "$python" -m pytest pymodule/tests/gpu -v -p no:cacheprovider --durations=9 "$@"
}

if [ ! -e "$library" ]; then
	echo "gpu-test: there is no $library: run scripts/build.sh, here or where Go is" >&2
	exit 1
fi
gpus=$("$python" -c 'import torch; print(torch.cuda.device_count())' || true)
if [ "${gpus:-0}" -eq 0 ]; then
	echo "gpu-test: PyTorch sees no GPU here" >&2
	exit 1
fi

step machine nvidia-smi
step passthrough scripts/bench/passthrough.sh
step start scripts/bench/start.sh
step gate scripts/bench/gate.sh
step gatestorm scripts/bench/gatestorm.sh
if [ "$gpus" -gt 1 ] && "$python" -c 'import xdist' 2>/dev/null; then
	tests tests -n "$gpus" --dist loadfile -m 'not several_gpus'
	tests together -m several_gpus
else
	tests tests
fi
step demo scripts/demo.sh

if [ -n "$failed" ]; then
	printf '\ngpu-test: FAILED:%s\n' "$failed"
	exit 1
fi
printf '\ngpu-test: all passed\n'
