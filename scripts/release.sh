#!/usr/bin/env bash
# Makes all that a release has, into build/release, checks it and signs it:
#   libtms-VERSION-py3-none-manylinux_2_28_{x86_64,aarch64}.whl, libtms_torch_memory_saver-VERSION-py3-none-any.whl
#   tms-VERSION.tar.gz         the source, as committed
#   SHA256SUMS                 of these; with --sign KEY also SHA256SUMS.asc, which gpg makes with that key
#
#   scripts/release.sh [--uncommitted] [--sign KEY]
# auditwheel says whether the wheels are what their names say; each is used: on the oldest Debian that there is, and on
# an emulated aarch64. What cannot be checked here is named at the end. --uncommitted is for a trial: the wheels have
# changes that are not committed, which are refused otherwise.
#
# A publisher says in pymodule/pyproject.toml who it is: [project.urls] has the home page and the issues, license the
# license. Both wheels have it from there.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/require.sh
uncommitted='' key=''
while [ $# -gt 0 ]; do
	case $1 in
	--uncommitted) uncommitted=1 ;;
	--sign) key=${2:-} && shift && [ -n "$key" ] || refuse "--sign without a key" ;;
	*) refuse "$@" ;;
	esac
	shift
done
if [ -z "$uncommitted" ] && [ -n "$(git status --porcelain)" ]; then
	echo "release: commit first what git status names, or give --uncommitted for a trial" >&2
	exit 1
fi
[ -z "$key" ] || gpg --list-secret-keys "$key" >/dev/null
require_python
require_command aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
say() { printf '\n== %s\n' "$*"; }
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pymodule/tms/_version.py)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

say "libtms $version"
scripts/wheel.sh x86_64 aarch64
out=build/release
rm -rf $out
mkdir -p $out
cp build/wheel/libtms*-"$version"-*.whl $out/
git archive --prefix="tms-$version/" -o "$out/tms-$version.tar.gz" HEAD

say "auditwheel"
for wheel in "$out"/*manylinux*.whl; do
	found=$(build/venv/bin/auditwheel show --json "$wheel" | sed -n 's/.*"overall_tag": "\(.*\)".*/\1/p')
	echo "$(basename "$wheel"): $found"
	glibc=${found#manylinux_2_}
	[[ $found = manylinux_2_* && ${glibc%%_*} -le 28 ]] ||
		{ echo "release: not fit for glibc 2.28: $(build/venv/bin/auditwheel show "$wheel")" >&2; exit 1; }
done

unchecked=()
check() {
	say "$1"
	"$@" || { [ $? = 77 ] || exit 1; unchecked+=("$1"); }
}
check scripts/wheel/check-old.sh $out
check scripts/wheel/check-aarch64.sh "$out/"*_aarch64.whl

say "SHA256SUMS"
cd $out
sha256sum -- * >SHA256SUMS
sha256sum --check --quiet SHA256SUMS
[ -z "$key" ] || gpg --local-user "$key" --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
ls -l
python3 -m zipfile -e libtms-*_x86_64.whl metadata
grep -q '^Project-URL' metadata/*.dist-info/METADATA ||
	echo "release: the wheels name no home page: [project.urls] in pymodule/pyproject.toml is empty" >&2
rm -r metadata
[ ${#unchecked[@]} = 0 ] || echo "release: not checked here: ${unchecked[*]}" >&2
