#!/usr/bin/env bash
# Builds build/lib/libtms.so, build/bin/tms and the simulator in build/sim/. Says what is missing and installs what
# it can.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
require_go
require_cc

say() { printf '== %s\n' "$*"; }

# The Go runtime unblocks SIGCHLD and SIGPROF in every thread it touches, so a host that waits for
# them with sigtimedwait or signalfd would lose them. A library has no use for either: the runtime
# is compiled from a copy of that one table without the flag (docs/rationale.md, "Signals").
overlay() {
	local table
	table=$(go env GOROOT)/src/runtime/sigtab_linux_generic.go
	mkdir -p build/_overlay
	sed -E '/SIGCHLD|SIGPROF/s/ \+ _SigUnblock//' "$table" >build/_overlay/sigtab.go
	if [ "$(diff "$table" build/_overlay/sigtab.go | grep -c '^>')" != 2 ]; then
		echo "build: $table is not as expected: SIGCHLD and SIGPROF should each have _SigUnblock" >&2
		exit 1
	fi
	printf '{"Replace":{"%s":"%s"}}\n' "$table" "$PWD/build/_overlay/sigtab.go" >build/_overlay/overlay.json
}

say "libtms.so"
overlay
mkdir -p build/lib
CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -overlay build/_overlay/overlay.json \
	-ldflags "-s -w -linkmode=external -extldflags '-static-libgcc -Wl,-T,$PWD/preload/goinit.ld -Wl,--version-script=$PWD/preload/exports.map -Wl,--wrap=sigaction'" \
	-o build/lib/libtms.so.new ./preload
go run ./internal/deferrelocations build/lib/libtms.so.new
mv build/lib/libtms.so.new build/lib/libtms.so # whole or not at all: it may be mapped somewhere
cp preload/tms.h build/lib/tms.h
rm -f build/lib/libtms.so.h build/lib/libtms.h

say "tms"
mkdir -p build/bin
CGO_ENABLED=0 go build -trimpath -o build/bin/tms ./cmd/tms

say "simulator"
scripts/build-sim.sh
say "done: build/lib/libtms.so, build/bin/tms, build/sim/"
