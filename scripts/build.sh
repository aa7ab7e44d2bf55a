#!/usr/bin/env bash
# Builds build/lib/libtms.so, build/bin/tms and the simulator in build/sim/. Says what is missing and installs what
# it can.
#   scripts/build.sh --sanitized     libtms.so and the simulator into build/sanitized/, their C under AddressSanitizer
#                                    and UndefinedBehaviorSanitizer, for tests alone
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
require_go
require_cc

out=build strip="-s -w" sanitizers=()
if [ "${1:-}" = --sanitized ]; then
	require_sanitizers
	out=build/sanitized strip=
	sanitizers=(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
	export CGO_CFLAGS="-g ${sanitizers[*]}" CGO_LDFLAGS="${sanitizers[*]}"
fi

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
mkdir -p $out/lib
CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -overlay build/_overlay/overlay.json \
	-ldflags "$strip -linkmode=external -extldflags '-static-libgcc -Wl,-T,$PWD/preload/goinit.ld -Wl,--version-script=$PWD/preload/exports.map -Wl,--wrap=sigaction'" \
	-o $out/lib/libtms.so.new ./preload
go run ./internal/deferrelocations $out/lib/libtms.so.new
mv $out/lib/libtms.so.new $out/lib/libtms.so # whole or not at all: it may be mapped somewhere
cp preload/tms.h $out/lib/tms.h
rm -f $out/lib/libtms.so.h $out/lib/libtms.h

if [ $out = build ]; then
	say "tms"
	mkdir -p build/bin
	CGO_ENABLED=0 go build -trimpath -o build/bin/tms ./cmd/tms
fi

say "simulator"
scripts/build-sim.sh $out/sim "${sanitizers[@]}"
say "done: $out/lib/libtms.so, $([ $out != build ] || echo build/bin/tms, )$out/sim/"
