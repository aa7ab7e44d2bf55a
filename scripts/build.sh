#!/usr/bin/env bash
# Builds libtms.so and tms.h into build/lib/, the command tms into build/bin/ and the simulator into build/sim/. Says
# what is missing, and installs what it can.
#   scripts/build.sh                 for x86-64
#   scripts/build.sh --aarch64       cross-compiled, into build/_aarch64/
#   scripts/build.sh --sanitized     libtms.so and the simulator into build/sanitized/, their C under AddressSanitizer
#                                    and UndefinedBehaviorSanitizer, for tests alone
# Needs Linux, Go 1.26 (any Go from 1.21 on fetches it) and gcc with GNU ld. What is missing and one Debian package
# away (gcc, libc6-dev, binutils) is installed when this runs as root; TMS_NO_INSTALL=1 forbids it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
umask 022 # what is built may be for programs of other users
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh

out=build strip="-s -w" sanitizers=() machine=amd64 optimize=-O2
case ${1:-} in
"") ;;
--aarch64)
	out=build/_aarch64 machine=arm64
	export CC=aarch64-linux-gnu-gcc
	require_command "$CC" gcc-aarch64-linux-gnu libc6-dev-arm64-cross
	;;
--sanitized)
	require_sanitizers
	out=build/sanitized strip= optimize=
	sanitizers=(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
	export CGO_LDFLAGS="${sanitizers[*]}"
	;;
*) refuse "$@" ;;
esac
require_go
require_cc

say() { printf '== %s\n' "$*"; }

# The runtime is compiled from copies of six of its files (docs/design/signals.md and start.md).
#
# It unblocks SIGCHLD and SIGPROF in every thread it touches, so a host that waits for them with sigtimedwait or
# signalfd would lose them. A library has no use for either: the copy of that one table lacks the flag.
#
# Its poller makes an epoll and an eventfd at the first timer, of the scavenger's too, and a host that closes all
# descriptors would take them away. The one that it has for systems without a poller waits on a futex.
#
# It makes system calls on a goroutine's stack of a few KiB, where a sandbox's handler for SIGSYS does not fit, and some
# with all signals blocked, where the kernel ends the process instead. The copies make them on the thread's own stack,
# and never block SIGSYS.
overlay() {
	local runtime table poller stub calls masks system numbers
	runtime=$GOROOT/src/runtime calls=$GOROOT/src/syscall/syscall_linux.go
	masks=$runtime/os_linux_generic.go system=$runtime/os_linux.go numbers=$GOROOT/src/syscall/zsyscall_linux_$machine.go
	table=$runtime/sigtab_linux_generic.go poller=$runtime/netpoll_epoll.go stub=$runtime/netpoll_stub.go
	sed -E '/SIGCHLD|SIGPROF/s/ \+ _SigUnblock//' "$table" >build/_overlay/sigtab.go
	if [ "$(grep -cE '[+] _SigUnblock.*(SIGCHLD|SIGPROF)' "$table")" != 2 ]; then
		echo "build: $table is not as expected: SIGCHLD and SIGPROF should each have _SigUnblock" >&2
		exit 1
	fi
	if [ "$(sed -n 's/^func \([a-zA-Z]*\).*/\1/p' "$poller" | LC_ALL=C sort | tr '\n' ' ')" != \
		"netpoll netpollBreak netpollIsPollDescriptor netpollarm netpollclose netpollinit netpollopen " ]; then
		echo "build: $poller is not as expected: it has other functions" >&2
		exit 1
	fi
	sed -E -e '/^\/\/go:build/d' -e '/^import/d' -e '/^var netpollInited/d' \
		-e '/^func netpoll(GenericInit|inited|AnyWaiters|AdjustWaiters)\(/,/^}/d' "$stub" >build/_overlay/netpoll.go
	cat >>build/_overlay/netpoll.go <<-'GO'

		func netpollinit() {}

		func netpollIsPollDescriptor(fd uintptr) bool { return false }

		func netpollopen(fd uintptr, pd *pollDesc) uintptr { return 1 } // EPERM, as for a plain file

		func netpollclose(fd uintptr) uintptr { return 0 }

		func netpollarm(pd *pollDesc, mode int) {}
	GO
	sed -E 's/^\tr1, r2, errno = (linux\.Syscall6\(.*\))$/\tsystemstack(func() { r1, r2, errno = \1 })/' "$calls" \
		>build/_overlay/syscall.go
	if [ "$(grep -c 'linux\.Syscall6(' "$calls")/$(grep -c '^.systemstack(.*linux\.Syscall6(' build/_overlay/syscall.go)" != 1/1 ]; then
		echo "build: $calls is not as expected: RawSyscall6 alone should call Syscall6" >&2
		exit 1
	fi
	cat >>build/_overlay/syscall.go <<-'GO'

		//go:linkname systemstack runtime.systemstack
		//go:noescape
		func systemstack(call func())
	GO
	sed 's/^var sigset_all = sigset{^uint32(0), ^uint32(0)}$/var sigset_all = sigset{^uint32(1 << (_SIGSYS - 1)), ^uint32(0)}/' \
		"$masks" >build/_overlay/masks.go
	if ! grep -q '_SIGSYS' build/_overlay/masks.go; then
		echo "build: $masks is not as expected: sigset_all should have two words, full" >&2
		exit 1
	fi
	# It asks for the flags of descriptors 0 to 2 when it starts.
	sed -E 's/^\tr, _, err := (linux\.Syscall6\(linux\.SYS_FCNTL, .*\))$/\tvar r, err uintptr\n\tsystemstack(func() { r, _, err = \1 })/' \
		"$system" >build/_overlay/system.go
	if [ "$(grep -c 'systemstack(.*SYS_FCNTL' build/_overlay/system.go)" != 1 ]; then
		echo "build: $system is not as expected: fcntl should call Syscall6" >&2
		exit 1
	fi
	sed -E 's/^\tr0, _ := rawSyscallNoError\(/\tr0, _, _ := RawSyscall(/' "$numbers" >build/_overlay/numbers.go
	if [ "$(grep -c 'rawSyscallNoError(' "$numbers")/$(grep -c '^.r0, _, _ := RawSyscall(' build/_overlay/numbers.go)" != 8/8 ]; then
		echo "build: $numbers is not as expected: eight functions should call rawSyscallNoError" >&2
		exit 1
	fi
	printf '{"Replace":{"%s":"%s","%s":"%s","%s":"%s","%s":"%s","%s":"%s","%s":"%s"}}\n' "$table" "$PWD/build/_overlay/sigtab.go" \
		"$poller" "$PWD/build/_overlay/netpoll.go" "$calls" "$PWD/build/_overlay/syscall.go" \
		"$masks" "$PWD/build/_overlay/masks.go" "$system" "$PWD/build/_overlay/system.go" \
		"$numbers" "$PWD/build/_overlay/numbers.go" >build/_overlay/overlay.json
}

scripts/build-sim.sh $out/sim "${sanitizers[@]}" & # while Go compiles and links
simulator=$!

say "libtms.so"
mkdir -p build/_overlay $out/lib
# Go replaces no file below its module cache, which is where a toolchain lies that it has fetched: by this link it
# does not see that.
ln -sfn "$(go env GOROOT)" build/_overlay/go
export GOROOT=$PWD/build/_overlay/go GOTOOLCHAIN=local
PATH=$GOROOT/bin:$PATH
overlay
# Go does not look whether headers outside a package have changed: their checksum is among the flags, which it does.
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pymodule/tms/_version.py)
export CGO_CFLAGS="-g $optimize ${sanitizers[*]} -include $PWD/preload/glibc.h '-DTMS_VERSION=\"$version\"' -DTMS_HEADERS=$(cat region/*.h forward/*.h preload/glibc.h preload/*/*.h preload/gate/reach/*.h | cksum | tr -dc 0-9)"
glibc="-Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0" # preload/glibc.h says why
wrapped=dlopen,--wrap=dlsym,--wrap=dlclose,--wrap=dlerror,--wrap=sigaction,--wrap=x_cgo_mmap,--wrap=x_cgo_munmap,--wrap=x_cgo_init,--wrap=x_cgo_thread_start,--wrap=x_cgo_sys_thread_create
GOARCH=$machine CGO_ENABLED=1 go build -buildmode=c-shared -trimpath -overlay build/_overlay/overlay.json \
	-ldflags "$strip -linkmode=external -extldflags '-static-libgcc -Wl,-soname,libtms.so $glibc -Wl,-T,$PWD/preload/goinit.ld -Wl,--version-script=$PWD/preload/exports.map -Wl,-Bsymbolic-functions -Wl,--wrap=$wrapped'" \
	-o $out/lib/libtms.so.new ./preload
go run ./scripts/deferrelocations $out/lib/libtms.so.new
mkdir -p $out/_reach
parts="reach dlsym calls gate inside nccl communicators rdma registrations sequence suspending"
for file in $parts; do # reach.c and dlsym.c are called before a sanitizer has started
	${CC:-gcc} -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden \
		-include preload/glibc.h $([[ $file != dlsym ]] || echo "-DGLIBC_OWN_DLSYM") \
		$([[ $file = reach || $file = dlsym ]] || echo "${sanitizers[*]}") -c -o $out/_reach/$file.o preload/gate/reach/$file.c
done
${CC:-gcc} -shared -Wl,-z,defs -Wl,-soname,libtms_reach.so "${sanitizers[@]}" \
	-o $out/lib/libtms_reach.so.new $(printf "$out/_reach/%s.o " $parts) $glibc
# Move whole files, because the old ones may be mapped, and both at one time, so that a program that starts now finds a
# matching pair.
mv $out/lib/libtms.so.new $out/lib/libtms.so
mv $out/lib/libtms_reach.so.new $out/lib/libtms_reach.so
cp preload/tms.h $out/lib/tms.h.new
mv $out/lib/tms.h.new $out/lib/tms.h
rm -f $out/lib/libtms.so.h $out/lib/libtms.h
(cd preload/linking && find . -type f) | while read -r file; do
	mkdir -p "$out/lib/$(dirname "$file")"
	sed "s/@version@/$version/" "preload/linking/$file" >"$out/lib/$file"
done

if [ $out != build/sanitized ]; then
	say "tms"
	mkdir -p $out/bin
	GOARCH=$machine CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o $out/bin/tms ./cmd/tms
	rm -rf $out/man
	CGO_ENABLED=0 go run -trimpath -ldflags "-s -w" ./cmd/tms manual $out/man
	# What is linked in may only be passed on with its licence.
	{
		printf '%s\n' "go $GOROOT" "uplot $PWD/internal/report/uplot"
		go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}' ./cmd/tms ./preload | sort -u
	} | while read -r name folder; do
		printf '\n== %s\n' "$name"
		cat "$folder"/{LICENSE,NOTICE}* 2>/dev/null || true
	done >$out/bin/LICENSES
fi

say "simulator"
wait $simulator
say "done: $out/lib/libtms.so, $([ $out = build/sanitized ] || echo "$out/bin/tms, ")$out/sim/"
