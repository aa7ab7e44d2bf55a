// Command tms examines and steers programs whose CUDA memory libtms.so makes pausable.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	release "tms"
	"tms/internal/aid/readable"
	"tms/internal/snapshot/tree"
)

var version = release.Version

// The exit codes, which scripts may rely on: 1 is the answer "no", 2 means that a command cannot be carried out, 3 that
// there is no process to carry it out on, 4 that a process is lost.
const (
	exitNo        = 1
	exitUsage     = 2
	exitNoProcess = 3
	exitLost      = 4
)

// Each of these ends a command that has said why.
var (
	errNo        = errors.New("no")
	errNoProcess = errors.New("no process")
	errLost      = errors.New("lost")
)

func main() {
	if os.Args[0] == tree.InitName {
		os.Exit(tree.Init())
	}
	leaveLimit()
	outliveReaders()
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// leaveLimit starts the command again without a limit that it has inherited from a program of tms run: NVML and CUDA
// would tell the command the limit, and it needs the devices' own figures.
func leaveLimit() {
	if os.Getenv("TMS_LIMIT_BYTES") == "" || len(os.Args) > 1 && os.Args[1] == "run" { // which hands it on
		return
	}
	self, err := os.Executable()
	if err == nil && os.Unsetenv("TMS_LIMIT_BYTES") == nil {
		_ = syscall.Exec(self, os.Args, os.Environ()) // if it fails, the command goes on
	}
}

func run(arguments []string, stdout, stderr io.Writer) int {
	out := &output{to: stdout}
	root := rootCommand()
	root.SetArgs(arguments)
	root.SetOut(out)
	root.SetErr(stderr)
	addHelp(root)
	completesInAnyBash(root)
	if len(arguments) > 0 && arguments[0] == cobra.ShellCompRequestCmd {
		root.Flags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = false })
	}
	err := helpOfNoCommand(root, arguments)
	if err == nil {
		err = root.Execute()
	}
	return out.lost(stderr, exitStatus(err, out, stderr), err)
}

// exitStatus returns the exit status of a command, and says why it has failed unless the command has said so.
func exitStatus(err error, out *output, stderr io.Writer) int {
	var notRun notRunError
	switch {
	case err == nil || out.failed != nil && errors.Is(err, out.failed):
		return 0
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, errNoProcess):
		return exitNoProcess
	case errors.Is(err, errLost):
		return exitLost
	default:
		fmt.Fprintf(stderr, "tms: %v\n", err)
		if errors.As(err, &notRun) {
			return notRun.status()
		}
		return exitUsage
	}
}

func rootCommand() *cobra.Command {
	var asked libraryQuestion
	root := &cobra.Command{
		Use:           "tms [--path | --cflags --libs]",
		Short:         "Pausable GPU memory: tms alone says how to use libtms.so, --path where it is",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,

		DisableFlagsInUseLine: true,
		Args:                  commandsAlone,
		RunE:                  func(root *cobra.Command, _ []string) error { return showLibrary(root, asked) },
	}
	root.SetVersionTemplate("tms {{.Version}}\n")
	root.Flags().BoolVar(&asked.path, "path", false, "print the path of libtms.so, for LD_PRELOAD")
	root.Flags().BoolVar(&asked.compiled, "cflags", false, "print what a C program with tms.h is compiled with")
	root.Flags().BoolVar(&asked.linked, "libs", false, "print what a C program is linked with, before -lcudart")
	root.InitDefaultHelpFlag()
	root.InitDefaultVersionFlag()
	root.Flags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = true }) // docs/cli.md has them
	root.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", plainly(err), command.CommandPath())
	})
	root.AddCommand(demoCommand(), runCommand(), psCommand(), topCommand(), pauseCommand(), resumeCommand(), lendCommand(),
		swapCommand(), moveCommand(), idleCommand(), shareCommand(), metricsCommand(), serveCommand(), doctorCommand(),
		snapshotCommand(), restoreCommand(), snapshotsCommand(), recordCommand(), reportCommand(), replayCommand(),
		keptCommand(), keeperCommand(), versionCommand(), manualCommand())
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), // the overview leaves the command help out, too
		`(or .IsAvailableCommand (eq .Name "help"))`, ".IsAvailableCommand"))
	root.CompletionOptions.HiddenDefaultCmd = true // the overview has the commands, and docs/cli.md the rest
	return root
}

// addHelp adds the commands help and completion, when root has its output.
func addHelp(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	for _, command := range root.Commands() {
		switch command.Name() {
		case "completion":
			command.Args = commandsAlone
			command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
		case "help":
			command.Args = func(_ *cobra.Command, names []string) error {
				found, unknown, err := root.Find(names)
				return cmp.Or(err, commandsAlone(found, unknown))
			}
		}
	}
}

// commandsAlone refuses the name of an unknown command.
func commandsAlone(command *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return nil
	}
	meant := ""
	command.SuggestionsMinimumDistance = 2
	if similar := command.SuggestionsFor(arguments[0]); len(similar) > 0 {
		meant = fmt.Sprintf(" (perhaps you mean %s)", strings.Join(similar, " or "))
	}
	_, path, _ := strings.Cut(command.CommandPath()+" "+readable.Printable(arguments[0]), " ")
	return fmt.Errorf("there is no command %q%s; see %s --help", path, meant, command.CommandPath())
}

// helpOfNoCommand refuses to help with an unknown command. cobra would show the help of the command before it.
func helpOfNoCommand(root *cobra.Command, arguments []string) error {
	command, rest, err := root.Find(arguments)
	if err != nil || !command.HasSubCommands() || len(rest) != 2 || strings.HasPrefix(rest[0], "-") ||
		rest[1] != "--help" && rest[1] != "-h" {
		return nil
	}
	return commandsAlone(command, rest)
}

// plainly says what to write in place of a flag's bad value, where pflag names the Go function that refused it.
func plainly(err error) error {
	invalid, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return err
	}
	flag := invalid.GetFlag()
	why := errors.Unwrap(invalid)
	switch flag.Value.Type() {
	case "bool":
		why = errors.New("give true or false")
	case "int":
		why = fmt.Errorf("give a whole number, such as %s", map[bool]string{true: "12345", false: "1"}[flag.Name == "pid"])
	case "float64":
		why = errors.New("give a number, such as 1")
	}
	return fmt.Errorf("--%s %s: %w", flag.Name, invalid.GetValue(), why)
}

// interruptible returns a context that ends at the first SIGINT, SIGTERM or SIGHUP. Only again gives the signals their
// default action back, because a signal after the last step must not end a command that has done its work.
func interruptible() (ctx context.Context, again func()) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}

func noArguments(command *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("%s takes flags alone, and %q is none; see %[1]s --help", command.CommandPath(), arguments[0])
	}
	return nil
}
