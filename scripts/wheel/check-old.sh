#!/usr/bin/env bash
# Installs the x86_64 wheels of a folder on the oldest Debian that debootstrap still gets, without compilers, and uses
# them there over the simulator: demo, run, ps, doctor, pause, resume, and the first minutes of three users with a
# stopwatch. Ends with 77 where that cannot be had: it needs root, debootstrap and Debian's packages.
#   scripts/wheel/check-old.sh [FOLDER]     (build/wheel, unless given)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../usage.sh"
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
source scripts/require.sh
wheels=${1:-build/wheel}
[ -d "$wheels" ] || refuse "a folder $wheels"
root=$PWD/build/_old/root

# unavailable WHAT... is no failure of what is checked here.
unavailable() {
	echo "check-old: skipped: $*" >&2
	exit 77
}

[ "$(id -u)" = 0 ] || unavailable "only root can change its root directory"
unshare --mount --pid --fork true 2>/dev/null || unavailable "this root may make no mounts of its own"
command -v debootstrap >/dev/null || apt_install debootstrap || unavailable "cannot get debootstrap"
for suite in buster bullseye bookworm; do
	[ ! -e "$root.made" ] || break
	rm -rf "$root"
	mkdir -p "$root"
	echo "== Debian $suite"
	timeout 600 debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" >"$root.log" 2>&1 || continue
	touch "$root.made"
done
[ -e "$root.made" ] || unavailable "debootstrap gets no Debian: $(tail -n 1 "$root.log")"
rm -rf "$root/tmp/"*
cp "$wheels"/*_x86_64.whl "$wheels"/*-any.whl scripts/wheel/{walk,users}.sh "$root/tmp/"
# The mounts end with the walk.
unshare --mount --pid --fork bash -euc "mount -t proc proc $root/proc; mount --rbind /dev $root/dev
	exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root chroot $root \\
		bash -euc 'bash /tmp/walk.sh; bash /tmp/users.sh rl platform researcher'"
