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
	mkdir -p build/overlay
	sed -E '/SIGCHLD|SIGPROF/s/ \+ _SigUnblock//' "$table" >build/overlay/sigtab.go
	if [ "$(diff "$table" build/overlay/sigtab.go | grep -c '^>')" != 2 ]; then
		echo "build: $table is not as expected: SIGCHLD and SIGPROF should each have _SigUnblock" >&2
		exit 1
	fi
	printf '{"Replace":{"%s":"%s"}}\n' "$table" "$PWD/build/overlay/sigtab.go" >build/overlay/overlay.json
}

say "libtms.so"
overlay
mkdir -p build/lib
CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -overlay build/overlay/overlay.json \
	-ldflags "-s -w -linkmode=external -extldflags '-static-libgcc -Wl,-T,$PWD/preload/goinit.ld -Wl,--version-script=$PWD/preload/exports.map'" \
	-o build/lib/libtms.so ./preload
cp preload/tms.h build/lib/tms.h
rm -f build/lib/libtms.h

say "tms"
mkdir -p build/bin
CGO_ENABLED=0 go build -trimpath -o build/bin/tms ./cmd/tms

say "simulator"
scripts/build-sim.sh
say "done: build/lib/libtms.so, build/bin/tms, build/sim/"
