package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	reporting "tms/internal/report"
)

func reportCommand() *cobra.Command {
	var file, format string
	command := &cobra.Command{
		Use:   "report TRACE...",
		Short: "Show recordings of device memory on a page",
		Long: `Makes a page of recordings, with device memory over time and what bounded each
pause. Several traces must be of one machine; a trace may still be growing.`,
		Example: `  tms report train.trace
  tms report trainer.trace server.trace -o both.html
  tms report train.trace --format perfetto -o train.json`,
		RunE: func(command *cobra.Command, paths []string) error {
			if len(paths) == 0 {
				return errors.New("give a trace, such as tms record writes; see tms report --help")
			}
			write := reporting.WritePage
			switch format {
			case "html":
			case "perfetto":
				write = reporting.WritePerfetto
			default:
				return fmt.Errorf("--format %s: the formats are html and perfetto", format)
			}
			named := file != ""
			if !named {
				file = strings.TrimSuffix(strings.TrimSuffix(paths[0], ".gz"), ".trace") + ends[format]
			}
			for _, path := range paths {
				if isSame(path, file) {
					return fmt.Errorf("%s is a trace, and would be lost: name another file with -o", file)
				}
			}
			err := writeFile(command.OutOrStdout(), file, func(to io.Writer) error { return write(to, paths) })
			if err == nil && !named {
				fmt.Fprintf(command.OutOrStdout(), "wrote %s\n", file)
			}
			return err
		},
	}
	command.Flags().StringVarP(&file, "output", "o", "",
		"`FILE` to write (default: beside the first TRACE), or -")
	command.Flags().StringVar(&format, "format", "html", "`FORMAT`: html or perfetto")
	completes(command, "format", slices.Sorted(maps.Keys(ends))...)
	return command
}

// ends has how a report's file ends, by its format.
var ends = map[string]string{"html": ".html", "perfetto": ".json"}

func isSame(path, other string) bool {
	one, err := os.Stat(path)
	two, failed := os.Stat(other)
	return err == nil && failed == nil && os.SameFile(one, two)
}

// writeFile leaves no incomplete file behind, and after an error a file that was there before.
func writeFile(stdout io.Writer, path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(stdout)
	}
	to := path
	if there, err := os.Stat(path); err != nil || there.Mode().IsRegular() {
		to += ".part" // an earlier file stays until this one is whole
	}
	file, err := os.Create(to)
	if failed, ok := errors.AsType[*os.PathError](err); ok {
		return fmt.Errorf("%s cannot be written: %w", path, failed.Err)
	}
	err = errors.Join(write(file), file.Close())
	if to == path { // a pipe or a device
		return err
	}
	if err == nil {
		err = os.Rename(to, path)
	}
	if err != nil {
		_ = os.Remove(to)
	}
	return err
}
