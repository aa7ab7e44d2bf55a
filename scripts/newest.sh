#!/usr/bin/env bash
# Takes the newest wheels of what tms works with from PyPI, and says of each thing that tms relies on in them whether it
# is as before, has changed or has gone. It installs and imports nothing. Run it weekly. The wheels (1.5 GB, and 3 GB
# unpacked) replace what is in build/newest. Exit status 1: something has changed or gone; 2: it could not compare them.
#     scripts/newest.sh                    torch, vllm, sglang, torch_memory_saver, cupy-cuda13x, triton and JAX's plugin
#     scripts/newest.sh torch 'vllm<0.33'  these, as pip names them
# PYTHON_VERSION=3.11 takes the wheels for that Python (3.12).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for name; do
	case $name in -* | "") refuse "$@" ;; esac
done
source scripts/require.sh
require_command nm binutils

[ $# -gt 0 ] || set -- torch vllm sglang torch_memory_saver cupy-cuda13x triton jax-cuda13-plugin jax-cuda13-pjrt
place=build/newest
platforms=()
for glibc in 2014 _2_17 _2_27 _2_28 _2_31 _2_34; do platforms+=(--platform "manylinux${glibc}_x86_64"); done
rm -rf "$place"
mkdir -p "$place/wheels" "$place/site"
python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: "${platforms[@]}" \
	--python-version "${PYTHON_VERSION:-3.12}" -d "$place/wheels" "$@" || {
	echo "The newest wheels could not be fetched (pip says why), and nothing was compared." >&2
	exit 2
}
for wheel in "$place"/wheels/*.whl; do
	python3 scripts/newest/unpack.py "$wheel" "$place/site" || exit 2
done
python3 scripts/newest/compare.py "$place/site"
