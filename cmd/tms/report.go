package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	reporting "tms/internal/report"
	"tms/internal/trace"
)

func reportCommand() *cobra.Command {
	var file, format string
	command := &cobra.Command{
		Use:   "report TRACE...",
		Short: "Show what was recorded of device memory",
		Long: `Makes of recordings something to look at. A TRACE is what TMS_TRACE, tms run --trace or tms record has written,
also one that is still being written; several are of processes of one machine.

The formats:
  perfetto  a Chrome trace, for ui.perfetto.dev: a counter for each tag, a slice for each pause and resume
  csv       the allocations of one TRACE in the format of RMM's logging_resource_adaptor, for its tools

Exit status: 0 written, 2 not.`,
		Example: `  tms report train.trace --format perfetto -o train.json
  tms report train.trace --format csv -o train.csv`,
		Args: func(_ *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				return errors.New("give a trace, such as tms record writes; see tms report --help")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, paths []string) error {
			var write func(io.Writer) error
			switch format {
			case "perfetto":
				write = func(to io.Writer) error { return reporting.WritePerfetto(to, paths) }
			case "csv":
				if len(paths) > 1 {
					return errors.New("--format csv is of one trace")
				}
				write = func(to io.Writer) error { return lines(to, paths[0]) }
			default:
				return fmt.Errorf("--format %s: the formats are perfetto and csv", format)
			}
			if file == "" {
				return errors.New("give the file to write, with -o (- is the standard output)")
			}
			return writeFile(file, write)
		},
	}
	command.Flags().StringVarP(&file, "output", "o", "", "the file to write; - is the standard output")
	command.Flags().StringVar(&format, "format", "perfetto", "what to write")
	return command
}

func lines(to io.Writer, path string) error {
	records, file, err := trace.OpenRecords(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return trace.WriteLines(to, records)
}

// writeFile leaves no half of a file.
func writeFile(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(os.Stdout)
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		_ = os.Remove(path)
		return err
	}
	return nil
}
