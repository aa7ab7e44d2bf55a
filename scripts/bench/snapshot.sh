#!/bin/sh
# Snapshots of programs with GPU memory, and restores of them at random moments: how long they take, and whether every
# result is as before. Needs root, a GPU, and build/ with CRIU (build/criu, from scripts/require.sh); no Go. The results
# go to snapshot.json, table.md and logs.tar.gz in $OUT, or in build/bench/snapshot.
#
#     COUNT=20     snapshots with --stop, each with a restore, of each program
#     ONLY="..."   of: disk torch-8 copied nvml cupy jax copies contents training driver torch-16
#     UNTIL=280    seconds after which nothing else is begun
#     LIMIT=120    seconds that a command, or a wait for a step, may take; LONGEST=150 of all of a row
#     CONTENTS=16384  MiB of device memory in the row of contents. Its page cache needs three times as much free host memory
#     GPUS=0,1     where the two copies go
#     TOUCH=40     GiB of host memory that are touched before, where a machine gets its memory when it is used
#     DIRECTORY    of all files, on the disk that is measured; build/bench/snapshot without it
set -eu
. "$(dirname "$0")/../usage.sh"
[ $# -eq 0 ] || refuse "$@"
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
work=${DIRECTORY:-$PWD/build/bench/snapshot}
rm -rf "$work"
mkdir -p "$work"
[ -x build/criu/criu ] || command -v criu >/dev/null || {
	echo "snapshot.sh: there is no CRIU: source scripts/require.sh and run require_criu, where the machine has a network" >&2
	exit 1
}
[ ! -x build/criu/criu ] || export TMS_CRIU="${TMS_CRIU:-$PWD/build/criu/criu}"
XDG_RUNTIME_DIR=$(mktemp -d)
export TMS_LIBRARY="$PWD/build/lib/libtms.so" XDG_RUNTIME_DIR PYTHONUNBUFFERED=1
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
cuda=$(dirname "$(dirname "$nvcc")")
if [ -x "$nvcc" ]; then
	"$nvcc" -cudart static -O2 -o "$work/copied" scripts/bench/snapshot/copied.c ||
		${CC:-gcc} -O2 -o "$work/copied" scripts/bench/snapshot/copied.c "$cuda"/lib64/libcudart_static.a -ldl -lpthread -lrt
else # on the simulator
	${CC:-gcc} -O2 -o "$work/copied" scripts/bench/snapshot/copied.c -Lbuild/sim -l:libcudart.so.13 -l:libcuda.so.1
fi || echo "snapshot.sh: copied.c cannot be compiled, so its rows fail" >&2
exec "$python" scripts/bench/snapshot/measure.py "$work"
