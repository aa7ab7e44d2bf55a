#!/bin/sh
# Benchmarks on a GPU machine, each beside its baseline or peer in one run:
#   scripts/bench.sh passthrough        cudaMalloc and cudaFree outside regions
#   scripts/bench.sh gate [RUNS]        what the gate of gated pauses adds to a launch; needs no GPU
#   scripts/bench.sh gatestorm [PAUSES] [LIBCUDART]  gated pauses beside sixteen submitting threads
#   scripts/bench.sh start              starting a program that does not use the library
#   scripts/bench.sh recording          what a recording adds to an allocation and its free; needs no GPU
#   scripts/bench.sh backup [PEER]      contents in host memory and on disk; PEER is a folder that holds
#                                       the unpacked wheel of torch_memory_saver
#   scripts/bench.sh disk [DIRECTORY] [GIB] [SECONDS]  contents in files, beside plain parallel writes and reads past the
#                                       page cache
#   scripts/bench.sh cache [GIB] [PERCENT]  a cache of which a part is in use, with its contents
#   scripts/bench.sh layout [PEER]      many segments against one, small allocations, threads; --plot=FILE: only the chart
#   scripts/bench.sh extents [PEER]     how large extents should be: speed against slack
#   scripts/bench.sh handles [GIB]      what the driver charges for each handle, call by call
#   scripts/bench.sh ownerless [GIB]    what becomes of device memory after its maker has ended
#   scripts/bench.sh faults [tms | NAME=LIBRARY | PACKAGE==VERSION]...  each driver call of a pause and a resume fails once,
#                                       beside torch_memory_saver and vLLM's allocator; needs no GPU
#   scripts/bench.sh growth [--plot=FILE] [STEP...]  what each step costs as there is more of it; needs no GPU
#   scripts/bench.sh restore [SECONDS]  restores by the driver beside a program that takes all memory, begun in five ways
#   scripts/bench.sh duplex [GIB] [REPETITIONS]  two programs that change places, beside one after the other and the link
#   scripts/bench.sh share [GIB] [SECONDS] [--trainings N] [--beside] [--whole]  trainings that share a GPU by
#                                       themselves; on two H200: share 60 45 --trainings 5 --beside --whole
#   scripts/bench.sh engines vllm|sglang STEP...  real engines at the sizes of real models, beside their own ways: sleeps,
#                                       sets, new versions, snapshots; it prints the steps with --help
#   scripts/bench.sh rl [--steps N] [--apart]  a trainer and a rollout as verl's worker groups on Ray, in turn on one GPU,
#                                       beside the same without tms
#   scripts/bench.sh snapshot           snapshots and restores at random moments, copies, a training that is killed, beside the
#                                       driver's checkpoint and CRIU alone; settings: snapshot --help
#   scripts/bench.sh devices            two GPUs at once, and contents in another GPU's memory
#   scripts/bench.sh advance [--models 1.1B 8B] [--moves 1000] [--steps 10]  new weights for an engine: remapped, copied, read
#   scripts/bench.sh order [--layers 32] [--tokens 512 8192 16384]  the first token after a wake: a resume in the order
#                                       of layers, and the plain resume
#   scripts/bench.sh pools [TRACE...]   the pools on recorded traces, beside PyTorch's own allocator
set -eu
. "$(dirname "$0")/usage.sh"
cd "$(dirname "$0")/.."
what=${1:-}
[ $# -eq 0 ] || shift
case $what in
passthrough) exec scripts/bench/passthrough.sh "$@" ;;
gate) exec scripts/bench/gate.sh "$@" ;;
gatestorm) exec scripts/bench/gatestorm.sh "$@" ;;
start) exec scripts/bench/start.sh "$@" ;;
recording) exec scripts/bench/recording.sh "$@" ;;
backup)
	export PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}"
	exec "${PYTHON:-python3}" scripts/bench/backup.py "$@"
	;;
cache)
	export PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}"
	exec "${PYTHON:-python3}" scripts/bench/cache.py "$@"
	;;
disk) exec "${PYTHON:-python3}" scripts/bench/disk.py "$@" ;;
layout) exec "${PYTHON:-python3}" scripts/bench/layout.py "$@" ;;
extents) exec "${PYTHON:-python3}" scripts/bench/extents.py "$@" ;;
handles)
	mkdir -p build/bench
	cc -O2 -Wall -Wextra -o build/bench/handles scripts/bench/handles.c -ldl
	exec build/bench/handles "$@"
	;;
ownerless)
	mkdir -p build/bench
	nvcc -O2 -arch=native -o build/bench/ownerless scripts/bench/ownerless.cu -lcuda
	exec build/bench/ownerless "$@"
	;;
faults) exec "${PYTHON:-python3}" scripts/bench/faults.py "$@" ;;
growth) exec "${PYTHON:-python3}" scripts/bench/growth.py "$@" ;;
restore) exec "${PYTHON:-python3}" scripts/bench/restore.py "$@" ;;
snapshot) exec scripts/bench/snapshot.sh "$@" ;;
duplex) exec "${PYTHON:-python3}" scripts/bench/duplex.py "$@" ;;
share) exec "${PYTHON:-python3}" scripts/bench/share.py "$@" ;;
engines) exec "${PYTHON:-python3}" scripts/bench/engines.py "$@" ;;
rl)
	export PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}"
	exec "${PYTHON:-python3}" scripts/bench/rl.py "$@"
	;;
devices)
	export PYTHONPATH="$PWD/pymodule${PYTHONPATH:+:$PYTHONPATH}" TMS_RETAIN_CPU_BACKUP=1
	exec env LD_PRELOAD="$PWD/build/lib/libtms.so" "${PYTHON:-python3}" scripts/bench/devices.py "$@"
	;;
advance) exec "${PYTHON:-python3}" scripts/bench/advance.py "$@" ;;
order) exec "${PYTHON:-python3}" scripts/bench/order.py "$@" ;;
pools)
	! command -v go >/dev/null || go build -o build/bench/pairs ./scripts/bench/pairs # without Go: one from elsewhere
	exec "${PYTHON:-python3}" scripts/bench/pools.py "$@"
	;;
*) refuse "${what:-what to measure}" ;;
esac
