package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"tms/internal/doctor"
)

func doctorCommand() *cobra.Command {
	var pid int
	var asJSON bool
	command := &cobra.Command{
		Use:   "doctor [PROGRAM | --pid PID]",
		Short: "Check whether libtms.so can interpose a program on this machine",
		Long: `Checks whether libtms.so can interpose the CUDA memory of a program on this
machine, and names what prevents it. It changes nothing, and starts only the
program's loader (ld.so) and, where pip installed tms, its Python, to ask them.`,
		Example: `  tms doctor
  tms doctor python3
  tms doctor --pid 4242 --json`,
		RunE: func(command *cobra.Command, arguments []string) error {
			program := ""
			switch {
			case len(arguments) > 1:
				return fmt.Errorf("too many arguments: give one program, without its arguments (tms doctor %s)",
					arguments[0])
			case len(arguments) == 1 && command.Flags().Changed("pid"):
				return errors.New("give a program or --pid, not both")
			case command.Flags().Changed("pid") && pid <= 0:
				return fmt.Errorf("--pid %d: give the number of a running process", pid)
			case len(arguments) == 1 && arguments[0] == "":
				return errors.New("the program's name is empty: give its path")
			case len(arguments) == 1:
				program = arguments[0]
			}
			report, err := doctor.Examine(pid, program)
			if err != nil {
				return err
			}
			if found := dropinFinding(); found != nil {
				report.Findings = append(report.Findings, *found)
			}
			if asJSON {
				err = writeJSON(command.OutOrStdout(), report)
			} else {
				err = report.WriteText(command.OutOrStdout())
			}
			if err == nil && !report.CanInterpose {
				return errNo
			}
			return err
		},
	}
	flags := command.Flags()
	flags.IntVar(&pid, "pid", 0, "`PID` of a running process to examine")
	completesBy(command, "pid", completeProcesses)
	flags.BoolVar(&asJSON, "json", false, "print one JSON object")
	return command
}
