#!/usr/bin/env bash
# The long runs: every failure of every call, random operations against a model, fuzzing, cycles by the
# hundred thousand, a host of threads and forks, gated pauses beside submitting threads, chaos: random operations
# with failures and limits; processes swapped, and woken from idleness, by the command; programs that share a device,
# killed at random; clients that do anything; and in full what scripts/check.sh does in part. Hours; run
# scripts/build.sh first.
#   scripts/soak.sh [sweep] [model] [fuzz] [cycles] [host] [gate] [chaos] [swap] [idle] [share] [clients] [tests]
#                   (all, unless some are named)
# SEED, OPERATIONS (1000000; the host makes a 20th of them), CYCLES (100000), FUZZTIME (10m, for each target),
# GATE_PAUSES (10000), CHAOS_SECONDS (600, for each of seven runs), SWAPS and IDLE_ROUNDS (1000), SHARE_KILLS (100000),
# CLIENTS_SECONDS (600) may be set.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
require_go
require_cc
require_python

seed=${SEED:-$(date +%s)}
operations=${OPERATIONS:-1000000}
cycles=${CYCLES:-100000}
echo "== seed $seed"

engine() { # test pattern
	go test -count=1 -v -timeout 12h -run "$1" ./vmm
}

for part in "${@:-sweep model fuzz cycles host gate chaos swap idle share clients tests}"; do
	for what in $part; do
		echo "== $what"
		case $what in
		sweep)
			TMS_SWEEP=full engine '^TestSweep'
			TMS_SWEEP=full go test -count=1 -v -timeout 1h -run '^TestNoLimit' ./preload
			;;
		model) TMS_MODEL_OPERATIONS=$operations TMS_MODEL_SEED=$seed engine '^TestModel' ;;
		fuzz)
			for target in FuzzEngine:./vmm FuzzFit:./vmm/space FuzzSlab:./vmm/small FuzzParseRequest:./internal/control; do
				go test -run '^$' -fuzz "^${target%:*}\$" -fuzztime "${FUZZTIME:-10m}" -fuzzminimizetime 100x "${target#*:}"
			done
			;;
		cycles) TMS_CYCLES=$cycles engine '^TestCycles' ;;
		host)
			mkdir -p build/soak
			for major in 12 13; do
				gcc -std=gnu11 -g -O1 -Wall -Wextra -Werror -pthread -o build/soak/soak \
					preload/testdata/soak.c -Wl,-z,dynamic-undefined-weak \
					-Lbuild/sim "-l:libcudart.so.$major" -ldl
				TMS_DEBUG=invariants LD_PRELOAD=$PWD/build/lib/libtms.so LD_LIBRARY_PATH=build/sim \
					CUDASIM_MEMORY=1G timeout 2h build/soak/soak "$((operations / 20))" "$seed"
			done
			;;
		gate)
			TMS_GATE_PAUSES=${GATE_PAUSES:-10000} TMS_GATE_SEED=$seed \
				go test -count=1 -v -timeout 3h -run '^TestGateStorm$' ./preload
			;;
		chaos)
			for build in build build/sanitized; do
				scripts/build.sh $([ $build = build ] || echo --sanitized)
				TESTS_BUILD=$build TMS_CHAOS_SEED=$seed TMS_CHAOS_SECONDS=${CHAOS_SECONDS:-600} \
					go test -count=1 -v -timeout 12h -run '^TestChaos$' ./preload
			done
			;;
		idle) TMS_IDLE_ROUNDS=${IDLE_ROUNDS:-1000} go test -count=1 -v -timeout 3h -run '^TestIdle' ./cmd/tms ;;
		swap) TMS_SWAPS=${SWAPS:-1000} go test -count=1 -v -timeout 3h -run '^TestSwap' ./cmd/tms ;;
		share) TESTS_SHARE_KILLS=${SHARE_KILLS:-100000} go test -count=1 -v -timeout 12h -run '^TestShareAndKill$' ./cmd/tms ;;
		clients) TMS_CLIENTS_SECONDS=${CLIENTS_SECONDS:-600} go test -count=1 -v -timeout 3h -run '^TestClientsAtRandom$' ./preload ;;
		tests)
			TESTS_FULL=1 go test -count=1 -timeout 3h ./preload ./cmd/tms
			TESTS_FULL=1 build/venv/bin/python -m pytest -q pymodule/tests
			TESTS_FULL=1 go test -count=1 -race -timeout 3h ./vmm/... ./internal/...
			scripts/build.sh --sanitized
			TESTS_FULL=1 TESTS_BUILD=build/sanitized go test -count=1 -timeout 3h ./preload
			;;
		*) refuse "a part named $what" ;;
		esac
	done
done
echo "== the soak has passed"
