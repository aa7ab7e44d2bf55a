#!/usr/bin/env bash
# Uses the wheels that lie beside this script as someone does who has just got them. scripts/wheel/check-old.sh runs it.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2s/^# //p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")"
say() { printf '== %s\n' "$*"; }
fail() {
	printf 'walk: %s\n' "$*" >&2
	exit 1
}

# await COMMAND... waits for it to succeed.
await() {
	for _ in $(seq 600); do
		! "$@" >said 2>&1 || return 0
		sleep 0.1
	done
	cat said >&2
	fail "in vain: $*"
}

for compiler in cc gcc go; do
	! command -v $compiler >/dev/null || fail "there is a $compiler"
done
say "$(ldd --version | head -n 1), $(python3 --version)"
python3 -m venv environment
. environment/bin/activate
pip install -q --no-index ./*.whl
tms version
[ -f environment/share/man/man1/tms.1 ] && [ -f "$(dirname "$(tms --path)")/tms.h" ] || fail "the manual, or tms.h"
python -c 'import torch_memory_saver'

say "doctor"
tms doctor /bin/true >said || true # there is no driver
grep -q '^ok  *program ' said || { cat said; fail "doctor"; }

say "demo"
tms demo 2>/dev/null | tail -n 1 >said
grep -q '"restored": true.*"losses_equal": true' said || fail "demo: $(cat said)"

say "the tour of docs/without-gpu.md"
tms run --simulate --devices 2 --trace %p.trace -- python -m tms.examples.steps >steps &
program=$!
await grep -q '^step 2: contents kept' steps
tms ps
tms pause $program
tms ps $program | grep -q ' paused ' || fail "it is not paused: $(tms ps)"
tms resume $program
tms run --simulate -- tms move $program --to 1
at=$(wc -l <steps)
# shellcheck disable=SC2016 # awk's variables
await awk -v at="$at" 'END { exit NR < at + 2 }' steps
kill $program
wait $program || true
! grep LOST steps || fail "the contents"
tms report $program.trace
[ -s $program.html ] || fail "the report"
tms run --simulate --memory 256M -- python -m tms.examples.rollout 3
say "all of it works"
