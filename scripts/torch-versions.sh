#!/usr/bin/env bash
# Tries pymodule on versions of PyTorch, without a GPU: whether all that it uses of them is there,
# and has the signature that it is called with; tms.distributed over their stores; and those for
# CUDA 13 on the simulator, by scripts/torch-simulator.sh. Installs one after the other from PyPI (each
# takes 1 to 3 GB to download and 7 GB of disk while it is tried) and prints a line for each, and
# pytest's. docs/compatibility.md says what passed.
#     scripts/torch-versions.sh              2.6 to 2.11, 2.14 and 2.15
#     scripts/torch-versions.sh 2.6 2.11     these
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -e build/lib/libtms.so ] && [ -e build/sim/libcuda.so.1 ] || scripts/build.sh

place=build/torch-versions
trap 'rm -rf "$place"' EXIT
[ $# -gt 0 ] || set -- 2.6 2.7 2.8 2.9 2.10 2.11 2.14 2.15
mkdir -p build
free=$(df --output=avail -k build | tail -n 1)
if [ "$free" -lt $((10 << 20)) ]; then
	echo "10 GiB of disk are needed, and $((free >> 20)) are free" >&2
	exit 1
fi

failed=0
for version in "$@"; do
	rm -rf "$place"
	python3 -m venv "$place"
	"$place/bin/pip" install -q --disable-pip-version-check --no-cache-dir "torch==$version.*"
	# The driver is the simulator's, so that the library can start.
	PYTHONPATH=$PWD/pymodule LD_PRELOAD=$PWD/build/lib/libtms.so LD_LIBRARY_PATH=$PWD/build/sim \
		"$place/bin/python" -W ignore scripts/torch-versions/check.py || failed=1
	"$place/bin/pip" install -q --disable-pip-version-check --no-cache-dir pytest numpy
	"$place/bin/python" -m pytest -q -p no:cacheprovider pymodule/tests/test_distributed.py || failed=1
	if "$place/bin/python" -c 'import torch; assert torch.version.cuda.startswith("13.")' 2>/dev/null; then
		# Without captures of graphs: 2.11 makes them by a call that the stubs lack.
		TORCH_PYTHON=$place/bin/python scripts/torch-simulator.sh -k 'not graph' || failed=1
	fi
done
exit $failed
