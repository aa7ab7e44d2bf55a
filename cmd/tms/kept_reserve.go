package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/group"
	"tms/internal/sets"
)

func keptReserveCommand() *cobra.Command {
	var device int
	command := &cobra.Command{
		Use:   "reserve [BYTES]",
		Short: "Make host memory ready for paused processes and demoted sets",
		Long: `Makes host memory so that BYTES are free, beside what is in use. It belongs to
no process: the pauses of all your programs and the demotions of sets put
contents there, and give it back afterwards. They need not make and pin memory
themselves. The system gets what a killed process has used; reserve again then.
A smaller number frees memory, and 0 frees all. Without a number, the command
says how much is free.`,
		Example: `  tms kept reserve 64G
  tms kept reserve 64G --device 4     # on the NUMA node of another GPU`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, arguments []string) (err error) {
			if len(arguments) > 1 {
				return errors.New("give one number of bytes, such as 64G, or none")
			}
			bytes := uint64(sets.Unchanged)
			if len(arguments) > 0 && arguments[0] == "0" {
				bytes = 0
			} else if len(arguments) > 0 {
				bytes, err = sizeOf("BYTES", arguments[0])
			}
			if err == nil {
				err = startKeeper()
			}
			if err != nil {
				return err
			}
			unlock, err := group.Lock("reserve") // two at once would both make what is missing
			if err != nil {
				return err
			}
			_ = os.Unsetenv("CUDA_VISIBLE_DEVICES") // so that CUDA has nvidia-smi's numbers
			_ = os.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
			free, err := sets.Reserve(bytes, device)
			unlock()
			if err == nil || free > 0 {
				fmt.Fprintf(command.OutOrStdout(), "%s of host memory are reserved and free\n", readable.Bytes(free))
			}
			return err
		},
	}
	command.Flags().IntVar(&device, "device", 0, "the GPU, by nvidia-smi's number, that the memory is to be near")
	completes(command, "device")
	return command
}
