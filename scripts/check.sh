#!/usr/bin/env bash
# What scripts/test.sh leaves out because it takes long: the tests with every place at which a call can fail, those that
# need a browser, Prometheus, tmux, musl or other mallocs, the C under sanitizers, what has threads under the race
# detector, a release and its wheels, and the linters. Half an hour on two cores. Its parts run one after the other.
#   scripts/check.sh [lint] [go] [python] [container] [sanitized] [race] [release]      (all, unless some are named)
#
# As root on Debian or Ubuntu it installs with apt-get what is missing of: gcc, libc6-dev, binutils, g++, musl-tools,
# tmux, zsh, fish, cmake, pkg-config, python3, python3-venv, libjemalloc2, libtcmalloc-minimal4, chromium-headless-shell,
# and for a release gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user, debootstrap. Otherwise, and with
# TMS_NO_INSTALL=1, it names what is missing and stops. Into build/ it fetches Python packages and, where apt-get has them, Prometheus and CRIU.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
for part; do
	case $part in lint | go | python | container | sanitized | race | release) ;; *) refuse "$@" ;; esac
done
require_preloadable
unset_users_variables
require_go
require_cc
require_sanitizers
export TESTS_COMPLETE=1 # no Go test is skipped for want of a program
export GOFLAGS="$GOFLAGS -trimpath -tags=netgo,osusergo"

say() { printf '\n== %s\n' "$*"; }

tests() { go test -vet=off -count=1 -timeout 60m "$@"; }

check_lint() {
	unformatted=$(gofmt -l cmd docs forward internal preload region scripts vmm version.go)
	[ -z "$unformatted" ] || { echo "gofmt would change: $unformatted" >&2; return 1; }
	go vet ./...
	go tool staticcheck ./...
	for command in "check" "format --check"; do
		build/venv/bin/ruff $command pymodule
		build/venv/bin/ruff $command --config pymodule/pyproject.toml scripts/bench scripts/house.py scripts/newest scripts/picture scripts/picture.py scripts/torch-versions docs/examples
	done
	(cd pymodule && ../build/venv/bin/python -m mypy && ../build/venv/bin/python -m mypy ../docs/examples/{rollout,standby,steps}.py ../scripts/{house,picture}.py ../scripts/newest/compare.py && ../build/venv/bin/python -m pyright)
	scripts/generate-kernels.sh --check
	build/venv/bin/python scripts/house.py
}

check_go() { # it compiles all C with warnings as errors, too
	require_command c++ g++
	require_command musl-gcc musl-tools
	require_command tmux tmux # a terminal for tms top, and for shells that complete
	require_command zsh zsh
	require_command fish fish
	require_command cmake cmake
	require_command pkg-config pkg-config
	require_library libjemalloc.so.2 libjemalloc2          # other malloc replacements to be
	require_library libtcmalloc_minimal.so.4 libtcmalloc-minimal4 # preloaded together with
	require_browser
	require_prometheus
	require_criu
	tests ./...
}

check_python() {
	build/venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder pymodule/tests
	# PyTorch is too large to be fetched for a check, so it runs where it is found.
	if [ -n "${TORCH_PYTHON:-}" ] || [ -x build/torch-simulator/bin/python ]; then
		scripts/torch-simulator.sh
	elif python3 -c 'import torch; assert (torch.version.cuda or "").startswith("13.")' 2>/dev/null; then
		TORCH_PYTHON=python3 scripts/torch-simulator.sh
	else
		say "without PyTorch: scripts/torch-simulator.sh fetches it and tries it on the simulator"
	fi
}

# As in a container that Docker starts: root of few capabilities, with 64 MiB in /dev/shm, without HOME, in a session
# from outside of its PID namespace. What a user has set for other programs is there, too.
check_container() {
	local capabilities=-all name namespaces=(--mount --pid --fork --mount-proc --kill-child)
	for name in audit_write chown dac_override fowner fsetid kill mknod net_bind_service net_raw setfcap setgid setpcap setuid sys_chroot; do
		capabilities=$capabilities,+$name
	done
	[ "$(id -u)" = 0 ] || namespaces+=(--map-root-user)
	unshare "${namespaces[@]}" true || { echo "skipped: no namespaces can be made here" >&2; return 0; }
	unshare "${namespaces[@]}" sh -c 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec setpriv --bounding-set="$0" --inh-caps=-all "$@"' \
		"$capabilities" env -u HOME -u TESTS_COMPLETE TESTS_QUICK=1 TMS_NO_INSTALL=1 TMS_CONTROL=1 CUDASIM_DEVICES=0 \
		CUDA_VISIBLE_DEVICES= PYTHONSAFEPATH=1 GOCACHE="$(go env GOCACHE)" GOMODCACHE="$(go env GOMODCACHE)" bash -euo pipefail -c '
			umask 077
			scripts/demo.sh 2>&1 | tail -n 1
			source scripts/require.sh
			unset_users_variables
			go test -vet=off -count=1 ./internal/snapshot/criu ./internal/snapshot/tree ./internal/api
			go test -vet=off -count=1 -run "^Test(ProcessesShare|TheFolder|ASmall)" ./internal/cudasim
			go test -vet=off -count=1 -run "^Test(Control(Dir|With)|AProcessWithOneThreadStaysSo|AListener|AnAnswerThat)" ./preload
			go test -vet=off -count=1 -run "^TestA(ProgramWithoutRings|MoveInAContainer)" ./cmd/tms
			build/venv/bin/python -m pytest -q pymodule/tests/test_kept.py pymodule/tests/test_ranks_share.py -k "lies_on or advances or descriptors"
		'
}

check_sanitized() {
	scripts/build.sh --sanitized
	TESTS_BUILD=build/sanitized tests ./preload
	# The simulator is loaded into the tests' own process: the sanitizer comes first, faults and stacks are Go's.
	TESTS_BUILD=build/sanitized tests -exec "env LD_PRELOAD=$(gcc -print-file-name=libasan.so) \
ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:use_sigaltstack=0" ./internal/cudasim
}

check_race() { # what has threads of its own; the soak has all packages
	tests -short -race ./vmm ./vmm/store ./vmm/reclaim ./vmm/pool/bfc ./vmm/pool/lifetime ./vmm/pool/program \
		./vmm/pool/torch ./internal/control/client ./internal/control/server ./internal/top
}

check_release() {
	scripts/release.sh --uncommitted
}

require_python dev
scripts/build.sh
for part in "${@:-lint go python container sanitized race release}"; do
	for name in $part; do
		say "$name"
		check_$name
	done
done
say "all checks passed"
