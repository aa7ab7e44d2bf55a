#!/usr/bin/env bash
# Takes the newest wheels of what tms works with from PyPI, and says of each thing that tms relies on in them whether it
# is as before, has changed or has gone. It installs and imports nothing. Run it weekly. The wheels (1.5 GB, and 3 GB
# unpacked) go to build/newest, where a wheel that is there already is not fetched again.
#     scripts/newest.sh                    torch, vllm, sglang, torch_memory_saver, cupy-cuda13x, triton and JAX's plugin
#     scripts/newest.sh torch 'vllm<0.33'  these, as pip names them
# PYTHON_VERSION=3.11 takes the wheels for that Python (3.12).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
require_command nm binutils

[ $# -gt 0 ] || set -- torch vllm sglang torch_memory_saver cupy-cuda13x triton jax-cuda13-plugin jax-cuda13-pjrt
place=build/newest
platforms=()
for glibc in 2014 _2_17 _2_27 _2_28 _2_31 _2_34; do platforms+=(--platform "manylinux${glibc}_x86_64"); done
mkdir -p "$place/wheels"
rm -rf "$place/site"
mkdir "$place/site"
for package; do
	python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: "${platforms[@]}" \
		--python-version "${PYTHON_VERSION:-3.12}" --find-links "$place/wheels" -d "$place/wheels/new" "$package"
	for wheel in "$place"/wheels/new/*.whl; do
		python3 scripts/newest/unpack.py "$wheel" "$place/site"
		mv "$wheel" "$place/wheels/"
	done
done
python3 scripts/newest/compare.py "$place/site"
