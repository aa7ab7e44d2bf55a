#!/usr/bin/env bash
# Builds build/wheel/tms-VERSION-py3-none-manylinux_2_X_MACHINE.whl: the library with the packages tms and
# torch_memory_saver.
#   scripts/wheel.sh            for x86_64, of build/lib/libtms.so as scripts/build.sh has left it
#   scripts/wheel.sh aarch64    cross-compiled
# X is the version of glibc that the library's symbols ask for.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
require_python

machine=${1:-x86_64}
case $machine in
x86_64)
	cc=gcc
	library=build/lib/libtms.so
	[ -e "$library" ] || scripts/build.sh
	;;
aarch64)
	cc=aarch64-linux-gnu-gcc
	library=build/_aarch64/lib/libtms.so
	scripts/build.sh --aarch64
	;;
*) refuse "a machine named $machine" ;;
esac

layout=build/wheel/$machine
rm -rf "$layout"
mkdir -p "$layout/tms/lib"
cp "$library" "$layout/tms/lib/libtms.so"

# The names under which clients of torch_memory_saver look for the library.
variables=$(grep -aoE 'TMS_[A-Z_]+[A-Z]' "$library" | sort -u | tr '\n' ' ')
# shellcheck disable=SC2016 # $ORIGIN is the loader's
"$cc" -shared -nostdlib -fPIC -Os -s -DVARIABLES="\"$variables\"" -Wl,-z,noseparate-code -Wl,--build-id=none \
	-Wl,--filter='$ORIGIN/tms/lib/libtms.so' -o "$layout/alias" scripts/wheel/alias.c
for name in {preload,torch}{,_cu12,_cu13}; do
	cp "$layout/alias" "$layout/torch_memory_saver_hook_mode_$name.abi3.so"
done

# A manylinux wheel uses nothing but glibc, of the version that its name says.
needed=$(readelf -dW "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
	grep -vxE 'libc\.so\.6|libpthread\.so\.0|libdl\.so\.2|ld-linux-aarch64\.so\.1' || true)
[ -z "$needed" ] || { echo "wheel: the library needs $needed, which not every Linux has" >&2; exit 1; }
glibc=$(readelf -VW "$library" | grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1)
platform=manylinux_2_${glibc#GLIBC_2.}_$machine

TMS_WHEEL_LAYOUT=$PWD/$layout TMS_WHEEL_PLATFORM=$platform build/venv/bin/pip wheel -q \
	--disable-pip-version-check --no-deps --no-build-isolation -w build/wheel ./pymodule
ls -l build/wheel/*"$platform".whl
