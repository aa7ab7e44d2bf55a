#!/usr/bin/env bash
# Builds everything and passes the tests of Go, C and Python: programs with the library preloaded over the simulator.
# It tells in some minutes whether the product works. Its parts run one after the other, so that it takes no more of the
# machine than its processors. scripts/check.sh has the rest: every place at which a call can fail, the race detector,
# the sanitizers, the linters, aarch64; scripts/soak.sh repeats.
#
# As root on Debian or Ubuntu it installs with apt-get what is missing of: gcc, libc6-dev, binutils, python3,
# python3-venv. Otherwise, and with TMS_NO_INSTALL=1, it names what is missing and stops. Into build/ it fetches Python
# packages. A test that needs another program (tmux, a browser, Prometheus) is skipped where the program is missing.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
[ $# -eq 0 ] || refuse "$@"
require_preloadable
require_go
require_cc
export TESTS_QUICK=1
# What is compiled here is the same in every checkout, so that another one's is found in Go's cache.
export GOFLAGS="$GOFLAGS -trimpath"

say() { printf '\n== %s\n' "$*"; }

require_python test
scripts/build.sh
say "Go and C"
go test -vet=off -count=1 -timeout 30m ./... # more than the ten minutes that are Go's limit, for a busy machine
say "Python"
build/venv/bin/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder pymodule/tests
say "all tests passed"
