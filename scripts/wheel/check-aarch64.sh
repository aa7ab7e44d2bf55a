#!/usr/bin/env bash
# Uses the aarch64 wheel on an emulated machine (qemu-user), over the simulator: a C program under each of the library's
# names, then the demo's training with Debian's Python. Downloads what it needs of Debian's; ends with 77 where that
# cannot be had.
#   scripts/wheel/check-aarch64.sh [WHEEL]     (it builds one, unless that is given)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/require.sh
cc=aarch64-linux-gnu-gcc
work=$PWD/build/_aarch64
say() { printf '== %s\n' "$*"; }

# unavailable WHAT... is no failure of what is checked here.
unavailable() {
	echo "check-aarch64: skipped: cannot get $*" >&2
	exit 77
}

for tool in "$cc:gcc-aarch64-linux-gnu libc6-dev-arm64-cross" qemu-aarch64:qemu-user; do
	# shellcheck disable=SC2086 # a list of packages
	command -v "${tool%%:*}" >/dev/null || apt_install ${tool#*:} ||
		unavailable "${tool%%:*} (Debian, Ubuntu: apt-get install ${tool#*:})"
done

say "Python for aarch64"
root=$work/root
if [ ! -x "$root/usr/bin/python3" ]; then
	apt=$work/apt # of its own: this machine's packages are none of its business
	mkdir -p "$apt"/state/lists/partial "$apt"/cache/archives/partial "$root"
	touch "$apt/status"
	options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$apt/state"
		-o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache")
	{ apt-get "${options[@]}" update && apt-get "${options[@]}" -y --no-install-recommends --download-only \
		install python3-minimal libpython3-stdlib >/dev/null; } ||
		unavailable "python3-minimal and libpython3-stdlib for arm64 from this machine's package sources"
	for package in "$apt"/cache/archives/*.deb; do
		dpkg-deb -x "$package" "$root"
	done
fi

require_python
rm -rf "$work/wheel" "$work/site" # its own folders, because tests may be reading the other wheels
wheel=${1:-}
if [ -z "$wheel" ]; then
	say "wheel"
	TMS_WHEEL_MACHINE=aarch64 build/venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps \
		--no-build-isolation -w "$work/wheel" ./pymodule
	wheel=$(echo "$work"/wheel/*.whl)
fi

sim=$work/site/tms/sim

# emulated PROGRAM... with only 16 GiB of addresses: qemu keeps a table of what is reserved.
emulator=(prlimit --as=40000000000 qemu-aarch64 -R 0x400000000 -L "$root"
	-E LD_LIBRARY_PATH="$sim:$root/usr/lib/aarch64-linux-gnu" -E CUDASIM_MEMORY=268435456)
emulated() { "${emulator[@]}" "$@"; }

say "install"
build/venv/bin/python -m pip install -q --disable-pip-version-check --target "$work/site" --no-index --no-deps --only-binary=:all: \
	--platform "$(basename "$wheel" .whl | sed 's/.*-//')" "$wheel"

say "every name interposes"
"$cc" -o "$work/linked" pymodule/tests/dropin/linked.c "-L$sim" -l:libcudart.so.13
for name in "$work"/site/tms/dropin/*.abi3.so "$work/site/tms/lib/libtms.so"; do
	[ "$(emulated -E LD_PRELOAD="$name" "$work/linked")" = pausable ] ||
		{ echo "$name does not interpose" >&2; exit 1; }
done

say "training"
python=(-E PYTHONHOME="$root/usr" -E PYTHONPATH="$work/site" -E PYTHONDONTWRITEBYTECODE=1 "$root/usr/bin/python3")
library=$(emulated "${python[@]}" -c 'import tms; print(tms.library_path())')
report=$(emulated -E LD_PRELOAD="$library" "${python[@]}" "$work/site/tms/examples/train.py" --device simulator --only pausing \
	--python "${emulator[*]} ${python[*]}")
for fact in address_kept restored freed lent; do
	grep -q "\"$fact\": true" <<<"$report" || { echo "not so on aarch64: $fact" >&2; exit 1; }
done
say "done: $(basename "$wheel") works on $(emulated "${python[@]}" -c 'import platform; print(platform.machine())')"
