#!/usr/bin/env bash
# Builds everything and passes all tests: Go (the engine also under the race detector), C and
# Python hosts with the library preloaded over the simulator, the same under sanitizers, and the linters. What is often
# repeated, or long, it does in part: scripts/soak.sh does all of it.
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
require_command c++ g++
require_command musl-gcc musl-tools
require_command tmux tmux # a terminal for tms top
require_sanitizers
require_python
require_library libjemalloc.so.2 libjemalloc2          # other malloc replacements to be
require_library libtcmalloc_minimal.so.4 libtcmalloc-minimal4 # preloaded together with
require_browser
require_prometheus

say() { printf '\n== %s\n' "$*"; }

scripts/build.sh

say "linters"
unformatted=$(gofmt -l cmd forward internal preload region vmm)
[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; exit 1; }
go vet ./...
go tool staticcheck ./...
mkdir -p build/_lint
(cd preload && go tool cgo -objdir ../build/_lint -- -std=gnu11 -I../region -I../forward -I. $(grep -l '^import "C"' *.go))
for file in preload/*.c preload/goruntime/*.c region/*.c forward/*.c reach/*.c; do # the rest of the C is built with these flags
	gcc -std=gnu11 -Wall -Wextra -Werror -fsyntax-only -isystem build/_lint -Ipreload -Iregion -Iforward -Ireach "$file"
done
for command in "check" "format --check"; do
	build/venv/bin/ruff $command pymodule
	build/venv/bin/ruff $command --config pymodule/pyproject.toml scripts/bench scripts/picture scripts/picture.py scripts/torch-versions docs/examples
done
(cd pymodule && ../build/venv/bin/python -m mypy && ../build/venv/bin/python -m mypy ../docs/examples/rollout.py ../scripts/picture.py && ../build/venv/bin/python -m pyright)

say "kernels"
scripts/generate-kernels.sh --check

say "Go tests"
go test -count=1 -timeout 30m ./... # ./preload takes minutes, and on a busy machine more than the ten that are Go's limit

say "Python tests and the aarch64 wheel; beside them, since all wait much, C under AddressSanitizer and \
UndefinedBehaviorSanitizer, and Go under the race detector"
scripts/build.sh --sanitized
beside() {
	TMS_TEST_BUILD=build/sanitized go test -count=1 -timeout 30m ./preload
	# The simulator is loaded into the tests' own process: the sanitizer comes first, faults and stacks are Go's.
	TMS_TEST_BUILD=build/sanitized go test -count=1 -exec "env LD_PRELOAD=$(gcc -print-file-name=libasan.so) \
ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:use_sigaltstack=0" ./internal/cudasim
	go test -count=1 -short -race -timeout 30m ./vmm/... ./internal/...
}
set -m # a process group of its own, and SIGINT not ignored
(set -e; beside) >build/beside.log 2>&1 &
beside=$!
set +m
trap 'kill -- -"$beside" 2>/dev/null || true' EXIT
build/venv/bin/python -m pytest -q pymodule/tests
scripts/wheel/check-aarch64.sh || [ $? = 77 ] # 77: what it needs of Debian's packages cannot be had here
wait "$beside" || { cat build/beside.log; exit 1; }
trap - EXIT
cat build/beside.log

say "all tests passed"
