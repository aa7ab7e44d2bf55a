package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"tms/internal/doctor"
)

func doctorCommand() *cobra.Command {
	var target doctor.Target
	var asJSON bool
	command := &cobra.Command{
		Use:   "doctor [PROGRAM | --pid N]",
		Short: "Say whether libtms.so can interpose a program on this machine",
		Long: `Says whether libtms.so can interpose the CUDA memory of a program on this machine, and what
stands in the way. Without a program it examines the machine only. It starts nothing and changes
nothing.

PROGRAM is a program, a script (its interpreter is examined) or a name in PATH. It is examined as
if it were started from this shell: set LD_LIBRARY_PATH, LD_PRELOAD and the settings of PyTorch and
NCCL as for the program itself.

Exit status: 0 it can be interposed, 1 it cannot, 2 the command line is wrong.`,
		Example: `  tms doctor
  tms doctor python3
  tms doctor --pid 4242 --json`,
		Args: func(command *cobra.Command, arguments []string) error {
			switch {
			case len(arguments) > 1:
				return fmt.Errorf("too many arguments: give one program, without its arguments (tms doctor %s)", arguments[0])
			case len(arguments) == 1 && command.Flags().Changed("pid"):
				return errors.New("give a program or --pid, not both")
			case command.Flags().Changed("pid") && target.PID <= 0:
				return fmt.Errorf("--pid %d: give the number of a running process", target.PID)
			case len(arguments) == 1 && arguments[0] == "":
				return errors.New("the program's name is empty: give its path")
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) == 1 {
				target.Program = arguments[0]
			}
			report, err := doctor.Examine(target)
			if err != nil {
				return err
			}
			write := report.WriteText
			if asJSON {
				write = report.WriteJSON
			}
			if err := write(command.OutOrStdout()); err != nil {
				return err
			}
			if !report.CanInterpose {
				return errNo
			}
			return nil
		},
	}
	flags := command.Flags()
	flags.IntVar(&target.PID, "pid", 0, "examine this running process")
	flags.StringVar(&target.Library, "library", "", "libtms.so (default: the process's, $TMS_LIBRARY, or beside this command)")
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return command
}
