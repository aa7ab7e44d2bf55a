package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
)

// completionTime is how long a shell's completion waits for processes to answer.
const completionTime = 300 * time.Millisecond

// bashWords gives cobra's script the words of the line without the package bash-completion, which it needs otherwise: the
// words as they are typed, where bash also splits them at = and at colons.
const bashWords = `
__tms_init_completion()
{
    local IFS=$' \t\n' line=${COMP_LINE:0:COMP_POINT}
    COMPREPLY=()
    read -ra words <<<"$line"
    if [[ $line == *[[:space:]] ]]; then
        words+=("")
    fi
    cword=$((${#words[@]} - 1))
    cur=${words[cword]}
    prev=${words[cword - 1]}
}
`

// completesInAnyBash changes what cobra has for bash, when the root has it.
func completesInAnyBash(root *cobra.Command) {
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil {
		panic(err) // cobra has no such command
	}
	bash.Long = "Print a script that makes bash complete commands, flags and numbers of processes:\n\n" +
		"    source <(tms completion bash)\n\nIn ~/.bashrc, the line is for each new session."
	cobras := bash.RunE
	bash.RunE = func(command *cobra.Command, arguments []string) error {
		if err := cobras(command, arguments); err != nil {
			return err
		}
		_, err := fmt.Fprint(command.OutOrStdout(), bashWords)
		return err
	}
}

// completes makes a flag complete to these values; without any, to nothing.
func completes(command *cobra.Command, flag string, values ...string) {
	completesBy(command, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func completesBy(command *cobra.Command, flag string, by cobra.CompletionFunc) {
	if err := command.RegisterFlagCompletionFunc(flag, by); err != nil {
		panic(err) // there is no such flag
	}
}

// completeProcesses completes the numbers of processes that listen, with their commands.
func completeProcesses(_ *cobra.Command, given []string, _ string) (found []string, _ cobra.ShellCompDirective) {
	for _, p := range fleet.Ask(completionTime) {
		if number := strconv.Itoa(p.PID); !slices.Contains(given, number) {
			found = append(found, number+"\t"+readable.Printable(p.Command))
		}
	}
	return found, cobra.ShellCompDirectiveNoFileComp
}

// completeProgram completes the first word to a program on PATH or a file, and later words to files.
func completeProgram(_ *cobra.Command, given []string, word string) (found []string, _ cobra.ShellCompDirective) {
	if len(given) == 0 && !strings.Contains(word, "/") {
		for _, folder := range filepath.SplitList(os.Getenv("PATH")) {
			entries, _ := os.ReadDir(folder)
			for _, entry := range entries {
				if strings.HasPrefix(entry.Name(), word) && !entry.IsDir() {
					found = append(found, entry.Name())
				}
			}
		}
	}
	return fleet.Distinct(completable(found)), cobra.ShellCompDirectiveDefault
}

// completeTags completes the tags of the processes that are named, or of all.
func completeTags(_ *cobra.Command, given []string, _ string) (found []string, _ cobra.ShellCompDirective) {
	pids, _ := processes(given)
	for _, p := range fleet.Ask(completionTime, pids...) {
		for _, tag := range p.Tags() {
			found = append(found, tag.Tag)
		}
	}
	return fleet.Distinct(completable(found)), cobra.ShellCompDirectiveNoFileComp
}

func completeJobs(*cobra.Command, []string, string) (found []string, _ cobra.ShellCompDirective) {
	for _, p := range fleet.Ask(completionTime) {
		found = append(found, p.Jobs...)
	}
	return fleet.Distinct(completable(found)), cobra.ShellCompDirectiveNoFileComp
}

// completable leaves out names that a terminal or a shell could take for more than a name: other programs have chosen them.
func completable(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return readable.Printable(name) != name || strings.ContainsAny(name, "$`\\\"'")
	})
}
