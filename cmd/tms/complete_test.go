package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/vmm/pool/kinds"
)

func TestCompletion(t *testing.T) {
	ownSockets(t)
	program := steeredProgram(t)
	one := startSteered(t, program, "MASTER_ADDR=here", "MASTER_PORT=1")
	other := startSteered(t, program)
	other.do("more 1")
	first, second := one.number()+"\t"+program, other.number()+"\t"+program
	pools := strings.Join(kinds.Names(), " ")
	for line, want := range map[string]string{
		"run --backup ":                     "disk host none peer sparse",
		"run --pool ":                       pools,
		"run --tag ":                        "",
		"replay --pool ":                    pools + " all",
		"report --format ":                  "html perfetto",
		"pause --to ":                       "disk host",
		"pause --timeout ":                  "",
		"idle --after ":                     "",
		"pause ":                            first + " " + second,
		"resume " + one.number() + " ":      second,
		"swap " + one.number() + " ":        second,
		"ps ":                               first + " " + second,
		"idle ":                             first + " " + second,
		"record ":                           first + " " + second,
		"doctor --pid ":                     first + " " + second,
		"resume --tag ":                     "cache weights more",
		"pause " + one.number() + " --tag ": "cache weights",
		"pause --job ":                      "here:1",
		"ps --job ":                         "here:1",
		"top ":                              "",
		"metrics ":                          "",
	} {
		require.Eventually(t, func() bool { // on a busy machine a process does not answer a shell in time
			out := succeeds(t, append([]string{"__complete"}, strings.Split(line, " ")...)...)
			found := strings.Split(strings.TrimSuffix(out, ":4\n"), "\n") // 4: no files
			found = found[:len(found)-1]
			slices.Sort(found)
			wanted := strings.FieldsFunc(want, func(r rune) bool { return r == ' ' })
			slices.Sort(wanted)
			return strings.HasSuffix(out, ":4\n") && slices.Equal(found, wanted)
		}, time.Minute, time.Millisecond, line)
	}
}

// Each shell, without the user's settings and without the package bash-completion, completes what is typed.
func TestCompletionInShells(t *testing.T) {
	hermetic.Thorough(t)
	for _, c := range []struct{ shell, start string }{
		{"bash", "bash --norc --noprofile -i"},
		{"zsh", "zsh -f -i"},
		{"fish", "fish --no-config"},
	} {
		t.Run(c.shell, func(t *testing.T) {
			t.Parallel()
			hermetic.Program(t, c.shell)
			s := openTmux(t, c.start, "PS1=$ ", "PATH="+filepath.Dir(tms)+":"+os.Getenv("PATH"), "HOME="+t.TempDir())
			load := map[string]string{
				"bash": "source <(tms completion bash); echo loa''ded",
				"zsh":  "autoload -U compinit; compinit -u; source <(tms completion zsh); echo loa''ded",
				"fish": "tms completion fish | source; echo loa''ded",
			}
			s.press("-l", load[c.shell])
			s.press("Enter")
			s.shows(`(?m)^loaded`)
			for typed, want := range map[string]string{
				"tms pau":           "tms pause",
				"tms pause --to=ho": "tms pause --to=host",
				"tms run --poo":     "tms run --pool",
			} {
				s.press("-l", typed)
				s.press("Tab")
				s.shows(`(?m)` + want + ` *$`)
				s.press("C-u")
			}
		})
	}
}

func TestCompletable(t *testing.T) {
	given := []string{"qwen3-8b", "evil\x1b[31mname", "one\ntwo", "$(touch x)", "`touch x`", "it's", "a b", "größer"}
	require.Equal(t, []string{"qwen3-8b", "a b", "größer"}, completable(given))
}
