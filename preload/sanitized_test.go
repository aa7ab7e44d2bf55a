package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// With TESTS_BUILD=build/sanitized the hosts run with that folder's library and simulator (scripts/build.sh
// --sanitized), and are themselves compiled with AddressSanitizer and UndefinedBehaviorSanitizer.

const buildVariable = "TESTS_BUILD"

var sanitized = strings.HasSuffix(os.Getenv(buildVariable), "sanitized")

// unsanitized are the tests whose hosts cannot run so, and why.
var unsanitized = map[string]string{
	"TestForkInEveryState/(starting.*|.*_16)": "hundreds take a minute; one while Go starts hangs in AddressSanitizer",
	"TestUnusedCostsLittle":                   "it measures time and memory",
	"TestPrograms":                            "as TestLimits, and it compares stderr",
	"TestLoadingInASandbox":                   "the sanitizers make system calls of their own",
	"TestEmulatedSystemCalls":                 "as TestLoadingInASandbox",
	"TestMusl":                                "there is no AddressSanitizer for musl",
	"TestOtherMallocs":                        "AddressSanitizer is a malloc of its own",
	"TestTwoCopiesOfTheLibrary":               "AddressSanitizer refuses two libraries with the same variables",
	"TestNoLimitEndsTheProcess":               "as TestLimits",
	"TestBookkeepingIsFull":                   "it leaves no memory, without which AddressSanitizer ends the process",
	"TestRecordMakesNoSystemCall":             "the sanitizers make system calls of their own",
	"TestOrdinaryPrograms":                    "not all programs bear AddressSanitizer",
	"TestCrowd":                               "2000 threads with small stacks are too many for AddressSanitizer",
	"TestLimits":                              "it limits the address space, of which AddressSanitizer takes 16 TiB",
	"TestLoaderIsNotNeeded":                   "its pauses of everything need the command, which is not built so",
	"TestDecimalComma":                        "as TestLoaderIsNotNeeded",
	"TestDriverInANamespaceOfItsOwn":          "AddressSanitizer must come first in each namespace of the loader",
}

// ofGo are the tests of Go by way of C that other tests try: sanitizers see C alone. The soak runs them all.
const ofGo = "^Test(Pool|PoolUnderAProgramThatKnowsNone|ManyTags|RequestsThatAreRefused|ManyClients|Withdrawn|Exports|" +
	"ControlDirectory|ControlOfOthers|ControlIsRobust|AHold.*|APauseIsItsClients|ClientsAtRandom|Socket.*|" +
	"AnAnswerThatIsLate|PausedWhileItWorks|HeaderDeclaresEveryExport|StackOfOurC|ClosedAndOpenedAgain|Faulthandler)$"

// leaking are the hosts that are not searched for leaks, and why: by name, or with their arguments.
var leaking = map[string]string{
	"calls":              "LeakSanitizer cannot stop a thread that is in the driver's stead when the program ends",
	"exits":              "LeakSanitizer cannot stop the threads of a process that is ending",
	"limits descriptors": "LeakSanitizer needs a descriptor",
	"majors":             "LeakSanitizer cannot stop a process that has libraries loaded for itself alone",
	"reopened":           "what the simulator has is left when it is unloaded",
	"vanish":             "the record of an operation whose caller does not come back stays with the process",
}

func TestMain(m *testing.M) {
	flag.Parse()
	if sanitized {
		patterns := []string{ofGo}
		if hermetic.Full {
			patterns[0] = "^$"
		}
		if given := flag.Lookup("test.skip").Value.String(); given != "" {
			patterns = append(patterns, given)
		}
		for name := range unsanitized {
			patterns = append(patterns, "^"+strings.ReplaceAll(name, "/", "$/^")+"$")
		}
		if err := flag.Set("test.skip", strings.Join(patterns, "|")); err != nil {
			panic(err)
		}
	}
	os.Exit(hermetic.Main(m))
}

// sanitizerFlags returns the compiler's flags, none for the usual build.
func sanitizerFlags() []string {
	if !sanitized {
		return nil
	}
	return []string{"-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"}
}

// sanitizedEnvironment adds what a sanitized process needs. Findings are written to files named reports.*.
func sanitizedEnvironment(t *testing.T, environment []string, program, reports string,
	arguments ...string) []string {
	t.Helper()
	leaks := 0
	name := filepath.Base(program)
	if _, err := os.Stat(filepath.Join("testdata", name+".c")); err == nil && leaking[name] == "" &&
		leaking[strings.Join(append([]string{name}, arguments...), " ")] == "" {
		leaks = 1
	}
	library, err := exec.Command("cc", "-print-file-name=libasan.so").Output()
	require.NoError(t, err)
	for i, entry := range environment { // it must be loaded first
		if others, ok := strings.CutPrefix(entry, "LD_PRELOAD="); ok {
			environment[i] = "LD_PRELOAD=" + strings.TrimSuffix(strings.TrimSpace(string(library))+":"+others, ":")
		}
	}
	// The host or Go handles faults, and the host sets alternate signal stacks.
	options := fmt.Sprintf("log_path='%s':detect_leaks=%d:handle_segv=0:handle_sigbus=0:handle_sigfpe=0:"+
		"handle_sigill=0:handle_abort=0:use_sigaltstack=0", reports, leaks)
	return append(environment, "ASAN_OPTIONS="+options, "UBSAN_OPTIONS=print_stacktrace=1:log_path='"+reports+"'")
}

// findings reads what the sanitizers have written.
func findings(t *testing.T, reports string) (found []string) {
	t.Helper()
	files, err := filepath.Glob(reports + ".*")
	require.NoError(t, err)
	for _, file := range files {
		text := read(t, file)
		found = append(found, text)
	}
	return found
}

// A sanitized build watches both the library's and the simulator's C.
func TestOverrun(t *testing.T) {
	program := compile(t, "overrun", majors[1])
	for where, function := range map[string]string{"library": "tms_set_current_tag", "simulator": "cuMemcpy"} {
		o := runAnyway(t, program, []string{where})
		if !sanitized {
			o.succeeded(t)
			continue
		}
		require.Len(t, o.findings, 1)
		require.Contains(t, o.findings[0], "heap-buffer-overflow")
		require.Contains(t, o.findings[0], function)
	}
}
