#!/usr/bin/env bash
# Builds the wheels, as for PyPI, into build/wheel, with their SHA256SUMS:
#   libtms-VERSION-py3-none-manylinux_2_28_MACHINE.whl      the Python package tms with libtms.so, tms.h, the command
#       tms and its manual, the simulator and a list of what is linked in (CycloneDX), for glibc 2.28 and later.
#   libtms_torch_memory_saver-VERSION-py3-none-any.whl      makes `import torch_memory_saver` that of libtms
#
#   scripts/wheel.sh                     for x86_64
#   scripts/wheel.sh x86_64 aarch64      for both; the latter is cross-compiled
# `pip install ./pymodule` builds the same and installs it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
[ $# -gt 0 ] || set -- x86_64
for machine; do
	case $machine in x86_64 | aarch64) ;; *) refuse "a machine named $machine" ;; esac
done
require_python
pip_wheel() {
	build/venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel "$1"
}

for machine; do
	rm -f build/wheel/*_"$machine.whl"
	TMS_WHEEL_MACHINE=$machine TMS_NO_INSTALL=${TMS_NO_INSTALL-} pip_wheel ./pymodule
done
rm -f build/wheel/*-any.whl
pip_wheel ./pymodule/dropin
cd build/wheel
sha256sum -- *.whl >SHA256SUMS
ls -l -- *.whl
