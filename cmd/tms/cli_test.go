package main

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

var writeCLI = flag.Bool("write-cli", false, "write the help of the commands into docs/cli.md anew")

// The help of a command fits a terminal, and docs/cli.md quotes it in the command's section.
func TestHelp(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(written)
	for _, command := range append(rootCommand().Commands(), rootCommand()) {
		if command.Hidden || command.Name() == "completion" {
			continue
		}
		var help bytes.Buffer
		arguments := append(strings.Fields(command.CommandPath())[1:], "--help")
		require.Zero(t, run(arguments, &help, &help))
		lines := strings.Split(strings.TrimSuffix(help.String(), "\n"), "\n")
		require.LessOrEqual(t, len(lines), 25, "tms %v", arguments)
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

func TestBadValues(t *testing.T) {
	for arguments, want := range map[string]string{
		"puase":                `there is no command "puase" (perhaps you mean pause); see tms --help`,
		"pause --timeout x 1":  "--timeout x: give a number of seconds, such as 30; see tms pause --help",
		"idle 1 --after 5":     "--after 5: give a time with its unit, such as 30s or 5m; see tms idle --help",
		"doctor --pid x":       "--pid x: give a whole number, such as 12345; see tms doctor --help",
		"pause --json=maybe 1": "--json maybe: give true or false; see tms pause --help",
		"ps x":                 `tms ps takes flags alone, and "x" is none; see tms ps --help`,
		"metrics --listen foo": "--listen foo: missing port in address; give an address and a free port, such " +
			"as 127.0.0.1:9400",
		"idle 1 --lock /none/such": "--lock /none/such cannot be opened: no such file or directory",
	} {
		var out, words bytes.Buffer
		require.Equal(t, exitUsage, run(strings.Fields(arguments), &out, &words), arguments)
		require.Empty(t, out.String(), arguments)
		require.Equal(t, "tms: "+want+"\n", words.String(), arguments)
	}
}

func TestVersion(t *testing.T) {
	for _, argument := range []string{"version", "--version"} {
		stdout, _, code := execute(t, nil, []string{argument})
		require.Zero(t, code)
		require.Regexp(t, `^tms \d+\.\d+\.\d+\n$`, stdout)
	}
}
