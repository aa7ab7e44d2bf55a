package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

// manualCommand writes the manual's pages into a folder. scripts/build.sh runs it, and the wheel has the pages.
func manualCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "manual FOLDER",
		Short:  "Write the pages of the manual into a folder",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(command *cobra.Command, folder []string) error {
			root := command.Root()
			root.DisableAutoGenTag = true
			root.Flags().VisitAll(func(flag *pflag.Flag) { flag.Hidden = false })
			if err := os.MkdirAll(folder[0], 0o755); err != nil {
				return err
			}
			return doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "tms " + version}, folder[0])
		},
	}
}
