# shellcheck shell=bash
# require_* make sure that a tool is there: install it where that is one command, else say what is
# missing and how to get it. Sourced by the other scripts.

GO_MINIMUM=1.26

require_go() {
	local found
	if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then
		PATH=$PATH:/usr/local/go/bin
	fi
	if ! command -v go >/dev/null 2>&1; then
		echo "missing: Go $GO_MINIMUM or newer. Get it from https://go.dev/dl/ and put its bin folder on PATH." >&2
		exit 1
	fi
	found=$(go env GOVERSION)
	if [ "$(printf '%s\n' "go$GO_MINIMUM" "$found" | sort -V | head -n 1)" != "go$GO_MINIMUM" ]; then
		echo "missing: Go $GO_MINIMUM or newer (this is $found). Get it from https://go.dev/dl/." >&2
		exit 1
	fi
}

# apt_install PACKAGE... as root on Debian and Ubuntu; elsewhere it fails.
apt_install() {
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
	echo "== installing $*"
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null ||
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }
}

require_cc() {
	if ! command -v gcc >/dev/null 2>&1 && ! apt_install gcc libc6-dev; then
		echo "missing: a C compiler. Install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)." >&2
		exit 1
	fi
	if ! ld --version 2>/dev/null | grep -q 'GNU ld' && ! apt_install binutils; then
		echo "missing: GNU ld, the only linker that knows INSERT in linker scripts (Debian, Ubuntu: apt-get install binutils)." >&2
		exit 1
	fi
}

# require_sanitizers: Debian's gcc brings these libraries with it, other distributions have them apart.
require_sanitizers() {
	local program
	program=$(mktemp)
	if ! gcc -fsanitize=address,undefined -x c -o "$program" - <<<'int main(void) { return 0; }' 2>/dev/null &&
		! apt_install gcc; then
		rm -f "$program"
		echo "missing: gcc's libasan and libubsan, for a test (Fedora: dnf install libasan libubsan)." >&2
		exit 1
	fi
	rm -f "$program"
}

require_cxx() {
	if ! command -v c++ >/dev/null 2>&1 && ! apt_install g++; then
		echo "missing: a C++ compiler, for a test (Debian, Ubuntu: apt-get install g++)." >&2
		exit 1
	fi
}

require_musl() {
	if ! command -v musl-gcc >/dev/null 2>&1 && ! apt_install musl-tools; then
		echo "missing: musl-gcc, for a test (Debian, Ubuntu: apt-get install musl-tools)." >&2
		exit 1
	fi
}

# require_python makes build/venv with the tools that pymodule's "dev" extra names.
require_python() {
	if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
		echo "missing: Python 3.9 or newer (Debian, Ubuntu: apt-get install python3 python3-venv)." >&2
		exit 1
	fi
	if [ ! -x build/venv/bin/python ]; then
		python3 -m venv build/venv 2>/dev/null ||
			{ apt_install python3-venv && python3 -m venv --clear build/venv; } ||
			{ echo "missing: Python's venv module (Debian, Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	fi
	if [ ! build/venv/installed -nt pymodule/pyproject.toml ]; then
		echo "== Python tools"
		build/venv/bin/pip install -q --disable-pip-version-check -e 'pymodule[dev]'
		touch build/venv/installed
	fi
}

# require_library FILE PACKAGE: a shared library that a test preloads.
require_library() {
	if ! compgen -G "/usr/lib/*/$1" >/dev/null && ! apt_install "$2"; then
		echo "missing: $1, which a test preloads (Debian, Ubuntu: apt-get install $2)." >&2
		exit 1
	fi
}
