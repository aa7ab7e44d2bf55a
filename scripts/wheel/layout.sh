#!/usr/bin/env bash
# Builds what the wheel holds beside its Python files into build/wheel/MACHINE, and prints that folder and the
# platform that the wheel is for. pymodule/hatch_build.py runs it.
#   scripts/wheel/layout.sh x86_64 | aarch64
# Where there is no Go, or nothing is newer than they, it takes build/lib, build/bin and build/sim as scripts/build.sh
# left them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/current.sh
exec 3>&1 1>&2
machine=${1:-}
case $machine in
x86_64) cc=gcc built=build option=() ;;
aarch64) cc=aarch64-linux-gnu-gcc built=build/_aarch64 option=(--aarch64) ;;
*) refuse "a machine named ${machine:-what}" ;;
esac
newer=$(newer_source $built)
if [ "$newer" = nothing ] || { [ -n "$newer" ] && have_go; }; then
	scripts/build.sh "${option[@]}"
fi

layout=build/wheel/$machine
rm -rf "$layout"
mkdir -p "$layout/bin" "$layout/tms/"{sim,dropin}
cp -r $built/man "$layout/"
cp -r $built/lib "$layout/tms/"
cp $built/bin/tms "$layout/bin/"
cp $built/bin/LICENSES "$layout/tms/"
cp $built/sim/lib{cuda.so.1,cudart.so.12,cudart.so.13,nvidia-ml.so.1} "$layout/tms/sim/"
"${cc%gcc}strip" "$layout"/tms/sim/*
# Go's linker leaves these empty and of another type than their names say, at which auditwheel fails.
"${cc%gcc}strip" --remove-section=.gnu.version{,_r} "$layout/bin/tms"

# The names under which clients of torch_memory_saver look for the library, beside the package of that name.
variables=$(grep -aoE 'TMS_[A-Z_]+[A-Z]' "$layout/tms/lib/libtms.so" | sort -u | tr '\n' ' ')
# shellcheck disable=SC2016 # $ORIGIN is the loader's
"$cc" -shared -nostdlib -fPIC -Os -s -DVARIABLES="\"$variables\"" -Wl,-z,noseparate-code -Wl,--build-id=none \
	-Wl,--filter='$ORIGIN/../lib/libtms.so' -o "$layout/alias" scripts/wheel/alias.c
for name in {preload,torch}{,_cu12,_cu13}; do
	cp "$layout/alias" "$layout/tms/dropin/torch_memory_saver_hook_mode_$name.abi3.so"
done
rm "$layout/alias"

# A manylinux wheel uses nothing but glibc, of no later version than its name says.
libraries=("$layout"/tms/lib/libtms.so "$layout"/tms/lib/libtms_reach.so "$layout"/tms/sim/*)
needed=$(readelf -dW "${libraries[@]}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
	grep -vxE 'lib(c\.so\.6|pthread\.so\.0|dl\.so\.2)|ld-linux-.*' || true)
[ -z "$needed" ] || { echo "wheel: a library needs $needed, which not every Linux has" >&2; exit 1; }
glibc=$(readelf -VW "${libraries[@]}" | grep -oE 'GLIBC_2\.[0-9]+' | sort -Vu | tail -n 1)
[ "${glibc#GLIBC_2.}" -le 28 ] ||
	{ echo "wheel: a library needs $glibc, and the wheel is for 2.28: preload/glibc.h lacks a function" >&2; exit 1; }
printf '%s\n' "$PWD/$layout" "manylinux_2_28_$machine" >&3
