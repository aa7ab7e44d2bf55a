package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var writeCLI = flag.Bool("write-cli", false, "write docs/cli.md anew, from the commands' help")

// cliPage is docs/cli.md: the help of each command that is not hidden.
func cliPage() string {
	var page strings.Builder
	page.WriteString("# The command tms\n\n" +
		"<!-- made from the commands' help by: go test ./cmd/tms -run TestCLIPage -write-cli -->\n")
	root := rootCommand()
	root.InitDefaultHelpFlag()
	for _, command := range root.Commands() { // by name
		if !command.IsAvailableCommand() || command.Name() == "completion" {
			continue
		}
		command.InitDefaultHelpFlag()
		fmt.Fprintf(&page, "\n## tms %s\n%s.\n\n", command.Name(), command.Short)
		text := strings.TrimSpace(command.Long) + "\n\nUsage:\n  " + command.UseLine() + "\n"
		if command.Example != "" {
			text += "\nExamples:\n" + command.Example + "\n"
		}
		text += "\nFlags:\n" + command.LocalFlags().FlagUsages()
		for line := range strings.Lines(text) {
			page.WriteString(strings.TrimRight("    "+line, " \n") + "\n")
		}
	}
	return page.String()
}

func TestCLIPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "cli.md")
	page := cliPage()
	if *writeCLI {
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
	written, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, page, string(written),
		"docs/cli.md is not what the commands' help says; make it anew: go test ./cmd/tms -run TestCLIPage -write-cli")
	var without []string
	for _, command := range rootCommand().Commands() {
		if !command.Hidden && (command.Short == "" || command.Long == "" || !strings.Contains(page, "\n## tms "+command.Name()+"\n")) {
			without = append(without, command.Name())
		}
	}
	require.Empty(t, without, "every command has help")
}
