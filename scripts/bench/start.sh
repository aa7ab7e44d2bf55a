#!/bin/sh
# What libtms.so adds to starting a program that does not use it, beside a library that does nothing
# and any others given.
set -eu
. "$(dirname "$0")/../usage.sh"
cd "$(dirname "$0")/../.."
out=$PWD/build/bench
mkdir -p "$out"
${CC:-gcc} -O2 -Wall -Wextra -o "$out/start" scripts/bench/start.c
${CC:-gcc} -O2 -shared -fPIC -o "$out/noop.so" preload/testdata/noop.c
exec "$out/start" 500 "$out/noop.so" "$PWD/build/lib/libtms.so" "$@"
