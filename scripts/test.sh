#!/usr/bin/env bash
# Builds everything and passes the tests of Go, C and Python: programs with the library preloaded over the simulator.
# It tells in some minutes whether the product works. The tests of Go and of Python run beside one another, because they
# wait more than they compute. scripts/check.sh has the rest: every place at which a call can fail, the race detector,
# the sanitizers, the linters, a release; scripts/soak.sh repeats.
#
# As root on Debian or Ubuntu it installs with apt-get what is missing of: gcc, libc6-dev, binutils, python3,
# python3-venv. Otherwise, and with TMS_NO_INSTALL=1, it names what is missing and stops. Into build/ it fetches Python
# packages and, as root, CRIU. A test that needs another program (tmux, a browser, Prometheus) is skipped where the program is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
[ $# -eq 0 ] || refuse "$@"
require_preloadable
unset_users_variables
require_go
require_cc
export TESTS_QUICK=1
# What is compiled here is the same in every checkout, so that another one's is found in Go's cache. By the tags, the
# tests and the command tms, which has no C, are made of the same packages.
export GOFLAGS="$GOFLAGS -trimpath -tags=netgo,osusergo"

say() { printf '\n== %s\n' "$*"; }

(require_python test && require_criu) & # it waits for the network and the disk more than it computes
fetching=$!
scripts/build.sh
wait $fetching
say "Go, C and Python"
failed=0
build/venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder pymodule/tests >build/_python.log 2>&1 &
python=$!
trap 'kill $python 2>/dev/null || true; rm -rf "${plain:-}"' EXIT
# The longest come first, so that none is alone at the end. 30 minutes, where Go's limit is ten, are for a busy machine.
go test -vet=off -count=1 -timeout 30m ./cmd/tms ./preload ./vmm ./... || failed=1
say "Python"
wait $python || failed=1
cat build/_python.log
[ $failed = 0 ] || exit 1
say "all tests passed"
