#!/usr/bin/env bash
# Compiles the GPU kernels to the PTX that is kept beside their source. With --check it only says
# whether what is kept is what the source gives. Neither CUDA nor a GPU is needed: the compiler is
# NVIDIA's NVRTC wheel, of a fixed version, old enough for every driver that has the calls we make.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
case ${1:-} in "" | --check) ;; *) refuse "$@" ;; esac
require_go
require_python
version=12.0.140
library=build/nvrtc-$version/nvidia/cuda_nvrtc/lib/libnvrtc.so.12
if [ ! -f "$library" ]; then
	build/venv/bin/python -m pip install --quiet --no-deps --target "build/nvrtc-$version" \
		"nvidia-cuda-nvrtc-cu12==$version"
fi
fresh=build/nvrtc-$version/digest.ptx
go run ./scripts/nvrtc "$library" compute_70 vmm/digest/digest.cu "$fresh"
if [ "${1:-}" = --check ]; then
	cmp "$fresh" vmm/digest/digest.ptx || {
		echo "vmm/digest/digest.ptx is not what digest.cu gives: run scripts/generate-kernels.sh" >&2
		exit 1
	}
else
	cp "$fresh" vmm/digest/digest.ptx
fi
