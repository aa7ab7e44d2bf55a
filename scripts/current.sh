# shellcheck shell=sh
# Sourced in the checkout's folder: is what scripts/build.sh has left in a folder current?

have_go() { command -v go >/dev/null 2>&1 || [ -x /usr/local/go/bin/go ]; }

# newer_source FOLDER prints a source that is newer than what a build makes last of each kind; "nothing" is there if one
# of them is missing.
newer_source() {
	for made in lib/libtms.so bin/LICENSES sim/libcuda.so.1; do
		[ -e "$1/$made" ] || echo nothing
		find cmd forward go.mod go.sum internal preload pymodule/tms/_version.py region scripts/build.sh \
			scripts/build-sim.sh scripts/deferrelocations vmm -type f ! -name '*_test.go' -newer "$1/$made" 2>/dev/null
	done | head -n 1 || true # bash may find that the first half was cut off
}
