# shellcheck shell=bash
# require_* make sure that a tool is there: they install it where that is one command, else say what is missing and
# how to get it. Sourced by the other scripts, in the repository's root.

GO_MINIMUM=1.26

missing() {
	printf 'missing: %s\n' "$*" >&2
	exit 1
}

# apt_install PACKAGE... as root on Debian and Ubuntu; elsewhere, and with TMS_NO_INSTALL set, it fails.
apt_install() {
	[ -z "${TMS_NO_INSTALL:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 1
	echo "== installing $* with apt-get, as root (TMS_NO_INSTALL=1 forbids it)" >&2
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null ||
		{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null; }
}

# require_build_folder: build/ can be written, programs run there, and so it is where temporary files are: a batch
# system's TMPDIR is missing outside of its job, and hardened machines mount /tmp with noexec.
require_build_folder() {
	mkdir -p build 2>/dev/null && [ -w build ] || {
		echo "$PWD/build cannot be written: copy the checkout to where you may write, and build there." >&2
		exit 1
	}
	if [ -n "${TMPDIR:-}" ] && ! { [ -d "$TMPDIR" ] && [ -w "$TMPDIR" ]; }; then
		echo "== TMPDIR=$TMPDIR cannot be written: taking /tmp" >&2
		unset TMPDIR
	fi
	programs_run build || {
		echo "Programs in $PWD/build may not be run (is it mounted with noexec?): copy the checkout elsewhere." >&2
		exit 1
	}
	programs_run "${TMPDIR:-/tmp}" || {
		echo "== programs in ${TMPDIR:-/tmp} may not be run: taking $PWD/build/_tmp for temporary files" >&2
		mkdir -p build/_tmp
		export TMPDIR=$PWD/build/_tmp
	}
}

programs_run() { # FOLDER
	local program runs=0
	program=$(mktemp "$1/tms.XXXXXX") || return
	printf '#!/bin/sh\n' >"$program"
	chmod 700 "$program"
	"$program" 2>/dev/null || runs=1
	rm -f "$program"
	return $runs
}

# require_preloadable: LD_PRELOAD can name what is built in this checkout.
require_preloadable() {
	case $(pwd -P) in *[[:space:]:]*)
		echo "LD_PRELOAD takes no path with a space or a colon, such as $(pwd -P): test a checkout elsewhere." >&2
		exit 1
		;;
	esac
}

# unset_users_variables: what a user's shell has set for programs on a GPU, for Python or for pytest is not for the tests.
unset_users_variables() {
	local name
	for name in ${!TMS_@} ${!CUDA_@} ${!CUDASIM_@} ${!PYTHON@} ${!PYTEST_@} LD_PRELOAD; do
		case $name in TMS_NO_INSTALL | PYTHON) ;; *) unset "$name" ;; esac
	done
}

# require_go also goes to the repository by a path that Go's tools understand: they split flags at spaces and quotes.
require_go() {
	local found
	require_build_folder
	if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then
		PATH=$PATH:/usr/local/go/bin
	fi
	command -v go >/dev/null 2>&1 ||
		missing "Go $GO_MINIMUM or newer. Get it from https://go.dev/dl/ and put its bin folder on PATH."
	# What a user has set for other programs, in the shell or with go env -w, is not for this one.
	[ "${GOROOT:-}/bin/go" -ef "$(command -v go)" ] || unset GOROOT
	unset GOEXPERIMENT
	export GO111MODULE=on GOWORK=off CGO_ENABLED=1
	GOOS=$(cd / && GOTOOLCHAIN=local go env GOHOSTOS 2>/dev/null) || true
	GOARCH=$(cd / && GOTOOLCHAIN=local go env GOHOSTARCH 2>/dev/null) || true
	export GOOS GOARCH
	# A container or a service may have no HOME, or one that cannot be written.
	if ! (cd / && mkdir -p "$(GOTOOLCHAIN=local go env GOCACHE)" "$(GOTOOLCHAIN=local go env GOMODCACHE)") 2>/dev/null; then
		export GOCACHE=$PWD/build/_go/cache GOPATH=$PWD/build/_go GOFLAGS="${GOFLAGS:-} -modcacherw"
	fi
	found=$(go env GOVERSION 2>&1 | tail -n 1) || true
	found=${found#devel }
	if [[ $found != go1.* ]] || [ "$(printf '%s\n' "go$GO_MINIMUM" "$found" | sort -V | head -n 1)" != "go$GO_MINIMUM" ]; then
		missing "Go $GO_MINIMUM or newer. This one says: $found
Get it from https://go.dev/dl/. Go 1.21 and later fetch it themselves where they reach a module proxy and GOTOOLCHAIN,
here $(cd / && go env GOTOOLCHAIN), lets them (GOTOOLCHAIN=auto)."
	fi
	export GOFLAGS="${GOFLAGS:-} -mod=readonly -buildvcs=false" # git refuses to answer in a folder of another user's
	case $PWD in
	*[!A-Za-z0-9_./+@%=~-]*)
		plain=$(mktemp -d /tmp/tms.XXXXXX)
		trap 'rm -rf "$plain"' EXIT
		ln -s "$PWD" "$plain/tms"
		cd "$plain/tms"
		;;
	esac
}

require_cc() {
	local program
	export CC=${CC:-gcc}
	if ! command -v "$CC" >/dev/null 2>&1 && ! { [ "$CC" = gcc ] && apt_install gcc libc6-dev; }; then
		missing "a C compiler, $CC. Install gcc (Debian, Ubuntu: apt-get install gcc libc6-dev)$([ "$CC" = gcc ] || echo ", and unset CC")."
	fi
	program=$(mktemp)
	if ! "$CC" -x c -pthread -o "$program" - <<<'#include <pthread.h>
int main(void) { return 0; }' 2>"$program.log" && ! apt_install gcc libc6-dev binutils; then
		head -n 3 "$program.log" >&2
		rm -f "$program" "$program.log"
		missing "what $CC needs for a C program: libc's headers, as or ld (Debian, Ubuntu: apt-get install gcc libc6-dev binutils)."
	fi
	rm -f "$program" "$program.log"
	case $("$CC" -Wl,--version 2>/dev/null || true) in
	*"GNU ld"*) ;;
	*) missing "GNU ld as $CC's linker: no other knows INSERT in linker scripts (Debian, Ubuntu: apt-get install binutils)." ;;
	esac
	if ! command -v cc >/dev/null 2>&1 && command -v gcc >/dev/null 2>&1; then # what tests call it
		mkdir -p build/_tools
		ln -sf "$(command -v gcc)" build/_tools/cc
		PATH=$PATH:$PWD/build/_tools
	fi
}

# require_sanitizers: Debian's gcc brings these libraries with it, other distributions have them apart.
require_sanitizers() {
	local program
	program=$(mktemp)
	if ! gcc -fsanitize=address,undefined -x c -o "$program" - <<<'int main(void) { return 0; }' 2>/dev/null &&
		! apt_install gcc; then
		rm -f "$program"
		missing "gcc's libasan and libubsan, for a test (Fedora: dnf install libasan libubsan)."
	fi
	rm -f "$program"
}

# require_command COMMAND PACKAGE... for a test.
require_command() {
	command -v "$1" >/dev/null 2>&1 || apt_install "${@:2}" ||
		missing "$1, for a test (Debian, Ubuntu: apt-get install ${*:2})."
}

# require_interpreter: $PYTHON, or else python3, is new enough, and its name is in python.
require_interpreter() {
	local says
	python=${PYTHON:-python3}
	command -v "$python" >/dev/null 2>&1 || { [ "$python" = python3 ] && apt_install python3 python3-venv; } ||
		missing "Python 3.9 or newer, $python (Debian, Ubuntu: apt-get install python3 python3-venv)."
	says=$("$python" -c 'import sys; print("Python %d.%d" % sys.version_info[:2]); sys.exit(sys.version_info < (3, 9))' 2>&1) ||
		missing "Python 3.9 or newer. $python says: $says
Where a newer one has another name, set PYTHON=python3.11, say (RHEL 8: dnf install python3.11)."
}

# require_python [EXTRA] makes build/venv with the tools that this extra of pymodule names: test for its tests, dev (if
# none is given) for linters, too. It makes one again that is only half there.
require_python() {
	local extra=${1:-dev}
	require_build_folder
	require_interpreter
	if ! build/venv/bin/python -m pip --version >/dev/null 2>&1; then
		rm -rf build/venv
		"$python" -m venv build/venv >/dev/null 2>&1 ||
			{ apt_install python3-venv && "$python" -m venv --clear build/venv; } ||
			{ rm -rf build/venv && missing "Python's venv module (Debian, Ubuntu: apt-get install python3-venv)."; }
	fi
	if [ ! build/venv/installed-$extra -nt pymodule/pyproject.toml ]; then
		echo "== Python tools"
		# What a user has set for other environments leaves nothing missing in this one.
		env -u PYTHONPATH -u PIP_TARGET -u PIP_PREFIX PIP_USER=0 build/venv/bin/python -m pip install -q --no-compile --disable-pip-version-check -e "pymodule[$extra]" ||
			missing "packages of pymodule's \"$extra\" extra: pip, above, says why."
		touch build/venv/installed-$extra
	fi
}

# require_browser: a Chromium without a screen, in which a test looks at a page.
require_browser() {
	local name
	for name in chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do
		! command -v $name >/dev/null 2>&1 || return 0
	done
	apt_install --no-install-recommends chromium-headless-shell ||
		missing "a Chromium, for a test (Debian: apt-get install chromium-headless-shell; Ubuntu: Google Chrome)."
}

# require_prometheus: prometheus and promtool, for a test; in build/prometheus, where no package manager has them.
require_prometheus() {
	local fetched=build/prometheus/fetched
	if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 || [ -x build/prometheus/promtool ]; then
		return
	fi
	rm -rf build/prometheus
	mkdir -p "$fetched"
	if command -v dpkg-deb >/dev/null 2>&1 && # not installed: that would start it as a service
		(cd "$fetched" && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }) >/dev/null 2>&1; then
		dpkg-deb --fsys-tarfile "$fetched"/prometheus_*.deb |
			tar -x -C build/prometheus --strip-components=3 ./usr/bin/prometheus ./usr/bin/promtool
	fi
	rm -rf "$fetched"
	[ -x build/prometheus/promtool ] ||
		missing "prometheus and promtool, for a test: put them on PATH (https://prometheus.io/download; Debian and Ubuntu have a package, prometheus)."
}

# require_library FILE PACKAGE: a shared library that a test preloads.
require_library() {
	compgen -G "/usr/lib/*/$1" >/dev/null || apt_install "$2" ||
		missing "$1, which a test preloads (Debian, Ubuntu: apt-get install $2)."
}

# require_criu: CRIU 4.2 or later, for tests: in build/criu, with its own loader and libraries, where the system's is
# missing or earlier. It is that of Debian's testing, from the mirror that apt has, and apt checks it by Debian's keys.
# Testing keeps a version for some weeks, so none is pinned. Where this fails, the tests of snapshots are skipped.
require_criu() {
	local found site package apt all=$PWD/build/criu/fetched
	found=$( (criu --version 2>/dev/null || true) | sed -n 's/^Version: //p')
	if [ -x build/criu/criu ] || [ "$(printf '%s\n' 4.2 "${found:-0}" | sort -V | head -n 1)" = 4.2 ]; then
		return
	fi
	rm -rf build/criu
	if [ -z "${TMS_NO_INSTALL:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
		echo "== fetching CRIU and its libraries into build/criu (TMS_NO_INSTALL=1 forbids it)" >&2
		mkdir -p "$all"/{lists/partial,cache/archives/partial,tree}
		site=$(debian_site || { apt-get update -qq && debian_site; }) || true
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site testing main" >"$all/sources.list"
		: >"$all/status" # as if nothing were installed: apt takes all that CRIU needs
		apt=(apt-get -qq -o Dir::Etc::sourceparts=/dev/null -o "Dir::Etc::sourcelist=$all/sources.list"
			-o "Dir::Cache=$all/cache" -o "Dir::State::lists=$all/lists" -o "Dir::State::status=$all/status"
			-o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Sandbox::User=root)
		if [ -n "$site" ] && "${apt[@]}" update &&
			"${apt[@]}" install -y --download-only --no-install-recommends criu >/dev/null; then
			for package in "$all"/cache/archives/*.deb; do
				dpkg-deb --fsys-tarfile "$package" |
					tar -x -C "$all/tree" --wildcards './usr/*bin/criu' './usr/lib/*-linux-gnu/*.so*' 2>/dev/null || true # tar fails where a package has no such file
			done
			find "$all/tree" -maxdepth 4 -name '*.so*' -exec cp -P -t build/criu {} +
			find "$all/tree" -name criu -type f -exec cp {} build/criu/criu.bin \;
			cat >build/criu/new <<-'SH'
				#!/bin/sh
				here=$(dirname "$(readlink -f "$0")")
				exec "$here"/ld-linux-*.so.* --library-path "$here" "$here/criu.bin" "$@"
			SH
			chmod +x build/criu/new
			build/criu/new --version >&2 && mv build/criu/new build/criu/criu || true
		fi
		rm -rf "$all"
	fi
	[ -x build/criu/criu ] ||
		echo "CRIU 4.2 is not here and cannot be fetched: the tests of snapshots are skipped (docs/snapshot.md)" >&2
}

debian_site() { apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | grep -m 1 .; }
