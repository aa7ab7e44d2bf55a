#!/bin/sh
# Makes the oracle in a directory: downloads PyTorch 2.0.0 (600 MB) and CUDA 11.7's headers from PyPI.
# Then, in vmm/pool/caching: go test -run PyTorch -oracle DIRECTORY/oracle [-update]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?directory}" && cd "$1"
pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux1_x86_64 \
	torch==2.0.0 nvidia-cuda-runtime-cu11==11.7.99 nvidia-cuda-nvcc-cu11==11.7.99
unzip -qo torch-2.0.0-*.whl 'torch/lib/libc10*' 'torch/include/c10/*'
unzip -qo nvidia_cuda_runtime_cu11-*.whl 'nvidia/cuda_runtime/include/*'
unzip -qo nvidia_cuda_nvcc_cu11-*.whl 'nvidia/cuda_nvcc/include/*'
echo 'libcudart.so.11.0 { global: *; };' > version
gcc -std=gnu11 -O2 -Wall -Wextra -Werror -shared -fPIC -Wl,-soname,libcudart.so.11.0 \
	-Wl,--version-script,version -o libcudart.so.11.0 "$here/cudart.c"
g++ -std=c++17 -O2 -Wall -Wextra -Werror -D_GLIBCXX_USE_CXX11_ABI=0 -isystem torch/include \
	-isystem nvidia/cuda_runtime/include -isystem nvidia/cuda_nvcc/include -I"$here" \
	"$here/oracle.cpp" -o oracle torch/lib/libc10_cuda.so torch/lib/libc10.so libcudart.so.11.0 \
	-Wl,-rpath,"$PWD/torch/lib:$PWD"
