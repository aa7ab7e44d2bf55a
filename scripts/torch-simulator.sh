#!/usr/bin/env bash
# Runs PyTorch itself on the simulator: tensors, pools and copies, but no kernels. It installs PyTorch 2.15.0 from PyPI
# (5.5 GB of disk) into build/torch-simulator, unless TORCH_PYTHON names a Python that has it, and makes stubs of
# what PyTorch's libraries want of libcudart and the simulator lacks.
#     scripts/torch-simulator.sh               the tests in pymodule/tests/pytorch
#     scripts/torch-simulator.sh -k order      some of them, by pytest's option
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -e build/lib/libtms.so ] && [ -e build/sim/libcuda.so.1 ] || scripts/build.sh

place=build/torch-simulator
mkdir -p "$place"
python=${TORCH_PYTHON:-$place/bin/python}
if [ ! -x "$python" ]; then
	python3 -m venv "$place"
	"$python" -m pip install -q --disable-pip-version-check --no-cache-dir torch==2.15.0 numpy
fi
libraries=$("$python" -c 'import importlib.util, os; print(os.path.dirname(importlib.util.find_spec("torch").origin))')/lib
{
	cat <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { return *least = 0, *greatest = -1, 0; }
int cudaStreamIsCapturing(void *, int *);
int cudaStreamGetCaptureInfo(void *stream, int *status, unsigned long long *id)
{
	if (id)
		*id = 1;
	return cudaStreamIsCapturing(stream, status);
}
static int lacks(void) { return 801; }
int cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
				     int *found)
{
	int (*real)(const char *, void **, unsigned, unsigned long long, int *) = dlsym(RTLD_NEXT, __func__);
	int code = real(name, function, version, flags, found);
	if (code == 0 && *function == NULL) {
		*function = lacks;
		if (found)
			*found = 0;
	}
	return code;
}
END
	comm -23 \
		<(nm -D --undefined-only "$libraries"/*.so 2>/dev/null | sed -En 's/.* U (_*cuda[A-Za-z0-9_]+).*/\1/p' | sort -u) \
		<(nm -D --defined-only build/sim/libcudart.so.13 | sed -E 's/.* ([^@]+).*/\1/' | sort -u) |
		grep -vxE 'cudaDeviceGetStreamPriorityRange|cudaStreamGetCaptureInfo' | sed 's/.*/int &(void) { return 0; }/'
} >"$place/stubs.c"
gcc -shared -fPIC -o "$place/stubs.so" "$place/stubs.c"
TESTS_PYTORCH="$python" TESTS_STUBS="$PWD/$place/stubs.so" \
	build/venv/bin/python -m pytest -q pymodule/tests/pytorch "$@"
