// Command tms examines and steers programs whose CUDA memory libtms.so makes pausable.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// version is that of libtms.so and the Python package: one release has them all.
var version = "0.1.0"

// The exit codes, also for scripts: 1 is the answer "no", 2 a command that cannot be carried out, 3 that there is no
// process to carry it out on.
const (
	exitNo        = 1
	exitUsage     = 2
	exitNoProcess = 3
)

// Each ends a command that has said why.
var (
	errNo        = errors.New("no")
	errNoProcess = errors.New("no process")
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(arguments []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(arguments)
	root.SetOut(stdout)
	root.SetErr(stderr)

	switch err := root.Execute(); {
	case err == nil:
		return 0
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, errNoProcess):
		return exitNoProcess
	default:
		fmt.Fprintf(stderr, "tms: %v\n", err)
		return exitUsage
	}
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "tms",
		Short:         "Pausable GPU memory",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				return fmt.Errorf("there is no command %q; see tms --help", arguments[0])
			}
			return nil
		},
		RunE: func(root *cobra.Command, _ []string) error { return root.Help() },
	}
	root.SetVersionTemplate("tms {{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, command.CommandPath())
	})
	root.AddCommand(runCommand(), psCommand(), topCommand(), pauseCommand(), resumeCommand(), swapCommand(), idleCommand(), metricsCommand(), doctorCommand(),
		recordCommand(), reportCommand(), replayCommand())
	return root
}
