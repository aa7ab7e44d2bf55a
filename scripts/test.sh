#!/usr/bin/env bash
# Builds everything and passes all tests: Go (what has threads also under the race detector), C and
# Python hosts with the library preloaded over the simulator, the C also under sanitizers, and the linters. Each repeats
# little: scripts/soak.sh repeats. Parts run side by side, since most wait much; what each says is in build/test/.
#
# As root on Debian or Ubuntu it installs with apt-get what is missing of: gcc, libc6-dev, binutils, g++, musl-tools,
# tmux, python3, python3-venv, libjemalloc2, libtcmalloc-minimal4, chromium-headless-shell, and for the aarch64 wheel
# gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user. Otherwise, and with TMS_NO_INSTALL=1, it names what is missing
# and stops. Into build/ it fetches Python packages and, where apt-get has it, Prometheus.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
[ $# -eq 0 ] || refuse "$@"
case $(pwd -P) in *[[:space:]:]*)
	echo "LD_PRELOAD takes no path with a space or a colon, such as $(pwd -P): test a checkout elsewhere." >&2
	exit 1
	;;
esac
require_go
require_cc
require_sanitizers
export TESTS_COMPLETE=1 # no Go test is skipped for want of these
# What is compiled here is the same in every checkout, so that another one's is found in Go's cache.
export GOFLAGS="$GOFLAGS -trimpath"

say() { printf '\n== %s\n' "$*"; }

declare -A parts
trap 'kill -- "${parts[@]/#/-}" 2>/dev/null || true' EXIT

# start PART... begins what runs beside all else, without the terminal; what it says is in build/test/.
start() {
	local part
	mkdir -p build/test
	set -m # each part is a process group of its own, and does not ignore SIGINT
	for part; do
		say "$part: build/test/$part.log"
		(set -e; $part) </dev/null >build/test/$part.log 2>&1 &
		parts[$part]=$!
	done
	set +m
}

# finish PART... waits for them, and ends the script if one has failed.
finish() {
	local part status
	for part; do
		status=0
		wait "${parts[$part]}" || status=$?
		unset "parts[$part]"
		say "$part"
		cat build/test/$part.log
		[ $status = 0 ] || exit 1
	done
}

lint() { # in the time in which the tests wait
	renice -n 10 $BASHPID >/dev/null
	unformatted=$(gofmt -l cmd forward internal preload region scripts vmm version.go)
	[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
	go vet ./...
	go tool staticcheck ./...
	for command in "check" "format --check"; do
		build/venv/bin/ruff $command pymodule
		build/venv/bin/ruff $command --config pymodule/pyproject.toml scripts/bench scripts/picture scripts/picture.py scripts/torch-versions docs/examples
	done
	(cd pymodule && ../build/venv/bin/python -m mypy && ../build/venv/bin/python -m mypy ../docs/examples/{rollout,standby}.py ../scripts/picture.py && ../build/venv/bin/python -m pyright)
	scripts/generate-kernels.sh --check
}

tools() { # which the builds do not need
	require_command c++ g++
	require_command musl-gcc musl-tools
	require_command tmux tmux # a terminal for tms top
	require_library libjemalloc.so.2 libjemalloc2          # other malloc replacements to be
	require_library libtcmalloc_minimal.so.4 libtcmalloc-minimal4 # preloaded together with
	require_browser
	require_prometheus
	require_python
}

go_tests() { # it compiles all C with warnings as errors, too
	go test -vet=off -count=1 -timeout 30m ./... # more than the ten minutes that are Go's limit, for a busy machine
}

python_tests() {
	build/venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder pymodule/tests
}

aarch64() {
	scripts/wheel/check-aarch64.sh || [ $? = 77 ] # 77: what it needs of Debian's packages cannot be had here
}

instrumented_tests() {
	TMS_TEST_BUILD=build/sanitized go test -vet=off -count=1 -timeout 30m ./preload
	# The simulator is loaded into the tests' own process: the sanitizer comes first, faults and stacks are Go's.
	TMS_TEST_BUILD=build/sanitized go test -vet=off -count=1 -exec "env LD_PRELOAD=$(gcc -print-file-name=libasan.so) \
ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:use_sigaltstack=0" ./internal/cudasim
	# What has threads of its own. The soak has all packages.
	go test -vet=off -count=1 -short -race -timeout 30m ./vmm ./vmm/backup/... ./vmm/reclaim ./vmm/pool/bfc ./vmm/pool/lifetime \
		./vmm/pool/program ./vmm/pool/torch ./internal/control/client ./internal/control/server ./internal/top
}

start tools
scripts/build.sh
scripts/build.sh --sanitized # before the parts, which share what builds are made with
finish tools
start go_tests python_tests instrumented_tests aarch64 lint
finish go_tests python_tests instrumented_tests aarch64 lint
trap - EXIT

say "all tests passed"
