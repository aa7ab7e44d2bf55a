#!/usr/bin/env bash
# The first minutes of four users, who have just got the wheels that lie beside this script, with seconds for each step:
#   users.sh [rl] [platform] [researcher] [cpp]     all, unless some are given; cpp needs gcc and pkg-config
# scripts/wheel/check-old.sh runs it after the walk, without compilers and so without cpp.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,4s/^# //p' "$0"; exit 0 ;; esac
cd "$(dirname "$0")"
wheels=$PWD
[ $# -gt 0 ] || set -- rl platform researcher cpp
folder=$(mktemp -d)
cd "$folder"
export XDG_RUNTIME_DIR=$folder CUDASIM_SHARED
started=()
end() {
	[ ${#started[@]} = 0 ] || kill "${started[@]}" 2>/dev/null || true
	wait
	started=()
	rm -f program.* # the next user's programs have these numbers again
}
trap 'end; rm -rf "$folder"' EXIT
fail() {
	printf 'users: %s\n' "$*" >&2
	cat said >&2
	exit 1
}

# step WORDS COMMAND... runs a command, which must succeed, and prints how long that took.
step() {
	local words=$1 begun=$EPOCHREALTIME
	shift
	"$@" >said 2>&1 || fail "$words: $*"
	awk -v words="$words" -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { printf "%7.2f s  %s\n", to - from, words }'
}
says() { grep -qE "$1" said || fail "not said: $1"; }
refuses() { ! "$@"; }
start() {
	"$@" >"program.${#started[@]}" 2>&1 &
	started+=($!)
}
await() {
	for _ in $(seq 600); do
		! "$@" >/dev/null 2>&1 || return 0
		sleep 0.1
	done
	fail "in vain: $*"
}
install() {
	python3 -m venv environment
	environment/bin/python -m pip install -q --no-index "$wheels"/*.whl
	PATH=$folder/environment/bin:$PATH
}
listens() { tms ps "$1" | grep -q "$2"; }
steps() { [ "$(wc -l <"$1")" -gt "$2" ]; }

# An RL engineer, whose program was written for torch_memory_saver.
rl() {
	cat >rollout.py <<-'PROGRAM'
		import ctypes
		from torch_memory_saver import torch_memory_saver
		ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)  # as PyTorch does
		runtime = ctypes.CDLL(None)
		pointer, size = ctypes.c_void_p(), ctypes.c_size_t(64 << 20)
		def call(name, *arguments):
		    assert getattr(runtime, name)(*arguments) == 0, name
		def free():
		    is_free, total = ctypes.c_size_t(), ctypes.c_size_t()
		    call("cudaMemGetInfo", ctypes.byref(is_free), ctypes.byref(total))
		    return is_free.value
		with torch_memory_saver.region("weights", enable_cpu_backup=True):
		    call("cudaMalloc", ctypes.byref(pointer), size)
		call("cudaMemset", pointer, 7, size)
		before = free()
		torch_memory_saver.pause("weights")
		assert free() == before + (64 << 20)
		torch_memory_saver.resume("weights")
		byte = ctypes.create_string_buffer(1)
		call("cudaMemcpy", byte, pointer, ctypes.c_size_t(1), 2)
		assert byte.raw == b"\x07"
		print("paused, resumed, contents equal")
	PROGRAM
	step "tms doctor says whose torch_memory_saver Python imports" sh -c 'tms doctor || true'
	says "imports torch_memory_saver from libtms"
	step "the program, unchanged: region, pause, resume" tms run --simulate -- python rollout.py
	says "contents equal"
}

# A platform engineer, who looks at programs, limits them and has a controller steer them.
platform() {
	start tms run --simulate -- python -m tms.examples.steps
	local program=${started[-1]}
	step "a program starts, and tms ps shows it" await listens "$program" active
	start tms metrics --listen 127.0.0.1:0
	local metrics=program.$((${#started[@]} - 1))
	await grep -q http "$metrics"
	cat >scrape.py <<-'SCRAPE'
		import re, sys, urllib.request
		url = re.search(r"http://[^ ]+", open(sys.argv[1]).read()).group()
		print(urllib.request.urlopen(url).read().decode())
	SCRAPE
	step "a scrape of tms metrics" python scrape.py "$metrics"
	says "^tms_[a-z_]+\{.*pid=\"$program\""
	step "a limit refuses, and says so" refuses tms run --simulate --limit 32M -- python -m tms.examples.steps
	says "limit"
	start tms serve --listen "unix:$folder/api"
	await test -S api
	cat >pause.py <<-'CONTROLLER'
		import http.client, json, socket, sys
		class Unix(http.client.HTTPConnection):
		    def connect(self):
		        self.sock = socket.socket(socket.AF_UNIX)
		        self.sock.connect("api")
		to = Unix("tms")
		to.request("POST", f"/v1/{sys.argv[1]}", json.dumps({"pids": [int(sys.argv[2])]}))
		answer = to.getresponse()
		print(answer.status, answer.read().decode())
		sys.exit(answer.status != 200)
	CONTROLLER
	step "a controller pauses it over HTTP" python pause.py pause "$program"
	step "tms ps says who paused it" tms ps "$program"
	says "paused by"
	step "a controller resumes it" python pause.py resume "$program"
	step "two programs share: the first gives way to the second" shared
}
shared() {
	local each=(tms run --simulate --memory 96M --share -- python -m tms.examples.steps)
	CUDASIM_SHARED=users-$$-shared
	start "${each[@]}"
	local first=program.$((${#started[@]} - 1))
	await grep -q "^step 2: contents kept" "$first"
	start "${each[@]}"
	local second=program.$((${#started[@]} - 1))
	await grep -q "^step 2: contents kept" "$second"
	local at
	at=$(wc -l <"$first")
	await steps "$first" $((at + 1))
	! grep LOST "$first" "$second"
}

# A researcher, who lends the GPU for an hour, here two seconds.
researcher() {
	start tms run --simulate -- python -m tms.examples.steps
	local program=${started[-1]} said_by at
	said_by=program.$((${#started[@]} - 1))
	step "the training runs" await grep -q "^step 2: contents kept" "$said_by"
	step "tms lend for an hour" tms lend "$program" --for 1h --to bert
	says "lent to bert until"
	step "tms ps says to whom and until when" tms ps "$program"
	says "lent to bert until"
	step "another end for the lend: two seconds" tms lend "$program" --for 2s --to bert
	at=$(wc -l <"$said_by")
	step "it resumes by itself" await steps "$said_by" "$((at + 1))"
	! grep LOST "$said_by" || fail "the contents"
}

# A C++ developer, who links a program.
cpp() {
	cat >program.cc <<-'PROGRAM'
		#include <cstdio>
		#include <tms.h>
		extern "C" int cudaMalloc(void **, size_t);
		int main()
		{
			void *weights;
			tms_set_current_tag("weights");
			tms_set_backup("host");
			tms_set_interesting_region(true);
			if (cudaMalloc(&weights, 64 << 20) || tms_pause("weights"))
				return std::puts(tms_last_error()), 1;
			std::printf("%llu MiB freed\n", static_cast<unsigned long long>(tms_last_bytes() >> 20));
			return tms_resume("weights");
		}
	PROGRAM
	local sim
	sim=$(dirname "$(dirname "$(tms --path)")")/sim
	ln -sf "$sim/libcudart.so.13" libcudart.so # NVIDIA's toolkit has it
	export PKG_CONFIG_PATH
	PKG_CONFIG_PATH=$(dirname "$(tms --path)")/pkgconfig
	# shellcheck disable=SC2016 # sh expands it
	step "g++ and pkg-config" sh -c 'g++ program.cc -o by-pkg-config $(pkg-config --cflags --libs tms) -L. -lcudart'
	# shellcheck disable=SC2016
	step "g++ and tms --cflags --libs" sh -c 'g++ program.cc -o program $(tms --cflags --libs) -L. -lcudart'
	for built in by-pkg-config program; do
		step "$built runs: pause, resume" env LD_LIBRARY_PATH="$sim" "./$built"
		says "64 MiB freed"
	done
}

begun=$EPOCHREALTIME
step "a virtual environment, and pip install of the wheels" install
for user; do
	echo "== $user"
	CUDASIM_SHARED=users-$$-$user
	$user
	end
done
awk -v from="$begun" -v to="$EPOCHREALTIME" 'BEGIN { printf "%7.2f s  in all\n", to - from }'
