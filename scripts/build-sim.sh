#!/usr/bin/env bash
# Builds the simulated GPU (internal/cudasim): libcuda.so.1, libcudart.so.12 and .13, libnvidia-ml.so.1.
#   scripts/build-sim.sh [FOLDER [COMPILER FLAG...]]     (build/sim, and none more, unless given)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
umask 022 # what is built may be for programs of other users
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source=internal/cudasim
out=${1:-build/sim}
cc=${CC:-gcc}
flags=(-std=gnu11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Werror -fPIC -fvisibility=hidden -pthread -shared -I$source -I$source/driver -Ivmm/digest -Wl,-z,defs
	-Wl,-Bsymbolic-functions # the libraries call themselves, not a library in front of them
	-include preload/glibc.h -Wl,--no-as-needed -l:libdl.so.2 -l:libpthread.so.0
	"${@:2}")
mkdir -p "$out"

# Built aside and moved into place, so that no program loads a half-written library.
staging=$(mktemp -d "$out/.build.XXXXXX")
trap 'rm -rf "$staging"' EXIT

build() { # library, version script, arguments
	local library=$1 map=$2
	shift 2
	"$cc" "${flags[@]}" -Wl,-soname,"$library" -Wl,--version-script="$map" -o "$staging/$library" "$@"
}

build libcuda.so.1 "$source/driver/libcuda.map" "$source"/driver/*/*.c preload/stat.c
for major in 12 13; do
	build "libcudart.so.$major" "$source/runtime/libcudart.$major.map" -DCUDART_MAJOR=$major \
		"$source"/runtime/*.c
done
build libnvidia-ml.so.1 "$source/nvml/libnvidia-ml.map" "$source"/nvml/nvml.c "$source"/driver/base/*.c preload/stat.c
ln -s libcuda.so.1 "$staging/libcuda.so"
ln -s libcudart.so.13 "$staging/libcudart.so"
mv -f "$staging"/* "$out/"
