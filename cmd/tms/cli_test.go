package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var writeCLI = flag.Bool("write-cli", false, "write the help of the commands into docs/cli.md")

// The help of a command fits a terminal, and docs/cli.md quotes it in the command's section.
func TestHelp(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(written)
	for _, command := range append(rootCommand().Commands(), rootCommand()) {
		if slices.Contains([]string{"completion", "manual", "version"}, command.Name()) {
			continue
		}
		var help bytes.Buffer
		arguments := append(strings.Fields(command.CommandPath())[1:], "--help")
		require.Zero(t, run(arguments, &help, &help))
		lines := strings.Split(strings.TrimSuffix(help.String(), "\n"), "\n")
		most := 25
		if !command.HasParent() {
			most = 30 // a line for each command that people start
		}
		require.LessOrEqual(t, len(lines), most, "tms %v", arguments)
		for _, line := range lines {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 80, "tms %v: %s", arguments, line)
		}
		if !command.HasParent() {
			continue
		}
		quoted := regexp.MustCompile("(?s)(\n## " + command.CommandPath() + "\n```text\n).*?(```\n)")
		require.True(t, quoted.MatchString(page), "docs/cli.md has no section %q that begins with the help",
			command.CommandPath())
		page = quoted.ReplaceAllString(page, "${1}"+strings.ReplaceAll(help.String(), "$", "$$")+"${2}")
	}
	if *writeCLI {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
		return
	}
	require.True(t, page == string(written), "docs/cli.md quotes older help: go test ./cmd/tms -run TestHelp "+
		"-write-cli")
}

// Arguments that a command does not take end it before it does anything. It says so in a line, whole or in part here.
func TestArgumentsThatAreRefused(t *testing.T) {
	folder, none := t.TempDir(), filepath.Join(t.TempDir(), "none")
	file := func(name, text string) string {
		path := filepath.Join(folder, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	script, empty := file("train.py", "print(1)\n"), file("empty", "")
	const head = "Thread,Time,Action,Pointer,Size,Stream\n"
	lines, bad := file("lines.csv", head), file("bad.csv", head+"1,t,free,0xa,1,0x0\n")
	for line, want := range map[string]string{ // each space begins an argument
		"puase": `tms: there is no command "puase" (perhaps you mean pause); see tms --help` + "\n",
		"doctr": "see tms --help",
		"list":  `there is no command "list" (perhaps you mean ps); see tms --help`,

		"help nonsense":   `there is no command "nonsense"; see tms --help`,
		"help kept drops": `there is no command "kept drops" (perhaps you mean drop); see tms kept --help`,
		"completion tcsh": `there is no command "completion tcsh" (perhaps you mean bash or`,

		"pause":                          "name the processes by number, or give --all",
		"pause x":                        `"x" is no process`,
		"kept x":                         `there is no command "kept x"; see tms kept --help`,
		"kept drop":                      "name the sets (tms kept lists them)",
		"kept demote":                    "name the sets (tms kept lists them)",
		"kept demote x --to moon":        "--to moon: give host or disk",
		"kept demote x --until 1G":       "--until chooses the sets itself: leave it or the names out",
		"kept demote --until -5":         "--until -5: give a number of bytes, such as 40GiB",
		"kept promote --start":           "name the sets (tms kept lists them)",
		"kept advance ":                  "a name is empty: name the sets (tms kept lists them)",
		"kept advance x  --back":         "a name is empty",
		"kept drop x ":                   "a name is empty",
		"kept demote ":                   "a name is empty",
		"kept promote ":                  "a name is empty",
		"kept verify ":                   "a name is empty",
		"restore":                        "give the directory of a snapshot: tms restore DIR",
		"restore a b":                    `one directory is restored at a time, and "b" is another`,
		"keeper x":                       `tms keeper takes flags alone, and "x" is none`,
		"pause 1 --tag ":                 "the tag is empty",
		"pause 1 --json=maybe":           "tms: --json maybe: give true or false; see tms pause --help\n",
		"pause 1 --to tape":              "--to tape: give disk or host",
		"pause 1 --to=":                  "--to : give disk or host",
		"pause 1 --to disk --discard":    "--discard leaves nothing to move",
		"pause 1 --everything --tag a":   "--everything pauses a whole process",
		"pause 1 --everything --dry-run": "--dry-run foretells a plain pause alone",
		"pause --job x --all":            "--job x and --all are both given: name the processes by number, or",
		"pause --all 123":                "--all and 123 are both given",
		"pause --job y 1 2":              "--job y and 1 are both given",
		"pause --job x --to disk":        "leave --to out",

		"resume 1 --all": "--all and 1 are both given",
		"resume 0":       `"0" is no process`,

		"swap 1":   "name two different",
		"swap 1 1": "name two different",
		"swap 1 y": `"y" is no process`,

		"ps x":         `"x" is no process`,
		"ps --job ":    "the job is empty",
		"ps --job x 1": "by number or by --job, not both",
		"top x":        `tms: tms top takes flags alone, and "x" is none; see tms top --help` + "\n",
		"top --job ":   "the job is empty",

		"idle":          "name the processes by number",
		"idle x":        `"x" is no process`,
		"idle 1 --tag ": "the tag is empty",

		"share":                 "name one process by its number",
		"share 1 2":             "name one process by its number",
		"share x":               `"x" is no process`,
		"run --priority 1 -- a": "give --share, too",
		"run --priority x -- a": "--priority x: give a number, such as 1",
		"run --limit much -- a": "--limit much",
		"run --host-limit 1G a": "give --share, too",

		"metrics --listen foo": "tms: --listen foo: address foo: missing port in address; give an address and a free port, " +
			"such as 127.0.0.1:9400\n",

		"record":     "name one process by its number",
		"record 1 2": "name one process by its number",
		"record x":   `"x" is no process`,

		"doctor --jsn":             "see tms doctor --help",
		"doctor --pid x":           "tms: --pid x: give a whole number, such as 12345; see tms doctor --help\n",
		"doctor --pid 0":           "number of a running process",
		"doctor --pid 2147483647":  "there is no process",
		"doctor --pid 1 true":      "not both",
		"doctor python3 train.py":  "give one program",
		"doctor ":                  "give its path",
		"doctor no-such-program":   "in PATH",
		"doctor ./no-such-program": "give the path",
		"doctor " + folder:         "is not a file",
		"doctor " + script:         "give the interpreter",
		"doctor " + empty:          "give the interpreter",

		"replay --pool bfc":                           "give a trace",
		"replay " + training:                          "--pool KIND",
		"replay --pool best " + training:              `"best"`,
		"replay --pool bfc --option a=1 " + training:  "no option a",
		"replay --pool all --option a=1 " + training:  "one kind",
		"replay --pool bfc --memory much " + training: "--memory much",
		"replay --pool bfc none.csv":                  "none.csv",
		"replay --pool bfc " + training + " " + bad:   "bad.csv:2: malformed trace: a free of pointer 0xa",

		"report -o " + none:                            "give a trace",
		"report " + lines:                              "does not begin with",
		"report -o " + lines + " " + lines:             "is a trace, and would be lost",
		"report " + lines + " --format pdf -o " + none: "the formats are",
		"report " + lines + " -o " + none:              "does not begin with",
		"report " + lines + ".none -o " + none:         "no such file or directory",
	} {
		var out, words bytes.Buffer
		require.Equal(t, exitUsage, run(strings.Split(line, " "), &out, &words), line)
		require.Empty(t, out.String(), line)
		require.Regexp(t, `^tms: [^\n]*\n$`, words.String(), line)
		require.Contains(t, words.String(), want, line)
	}
	require.NoFileExists(t, none)
}

func TestVersion(t *testing.T) {
	stdout, _, code := execute(t, nil, []string{"--version"})
	require.Zero(t, code)
	require.Regexp(t, `^tms \d+\.\d+\.\d+\n$`, stdout)
}
