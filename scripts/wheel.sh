#!/usr/bin/env bash
# Builds build/wheel/libtms-VERSION-py3-none-manylinux_2_X_MACHINE.whl: the Python packages tms and torch_memory_saver
# with libtms.so, tms.h, the command tms and the simulator. X is the version of glibc that their symbols ask for.
#   scripts/wheel.sh            for x86_64
#   scripts/wheel.sh aarch64    cross-compiled
# `pip install ./pymodule` builds the same and installs it.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
export TMS_WHEEL_MACHINE=${1:-x86_64} TMS_NO_INSTALL=${TMS_NO_INSTALL-}
case $TMS_WHEEL_MACHINE in x86_64 | aarch64) ;; *) refuse "a machine named $TMS_WHEEL_MACHINE" ;; esac
require_python
rm -f build/wheel/*_"$TMS_WHEEL_MACHINE.whl"
build/venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w build/wheel ./pymodule
ls -l build/wheel/*_"$TMS_WHEEL_MACHINE.whl"
