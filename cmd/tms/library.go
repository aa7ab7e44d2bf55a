package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	release "tms"
	"tms/internal/doctor"
)

// installedLibrary returns the path of the libtms.so that was installed or built with this command.
func installedLibrary() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("libtms.so is looked for beside this command, whose own path is not known: %w", err)
	}
	for _, path := range release.LibraryPaths(self) {
		if isFile(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("libtms.so is not beside %s, nor in the Python packages there: run scripts/build.sh in a "+
		"checkout, install the wheel again, or set TMS_LIBRARY to the file's path", self)
}

// libraryPath returns the path of libtms.so: what TMS_LIBRARY names, or the installed one.
func libraryPath() (string, error) {
	named := os.Getenv("TMS_LIBRARY")
	if named == "" {
		return installedLibrary()
	}
	if !isFile(named) {
		return "", fmt.Errorf("TMS_LIBRARY names %s, which is no file. Correct or unset the variable", named)
	}
	return filepath.Abs(named)
}

// libraries returns the paths to preload: libtms.so, and the other library beside it.
func libraries() ([]string, error) {
	path, err := libraryPath()
	if err != nil {
		return nil, err
	}
	both := []string{path, filepath.Join(filepath.Dir(path), "libtms_reach.so")}
	for _, file := range both {
		if err := preloadable(file); err != nil {
			return nil, err
		}
		if !isFile(file) {
			return nil, fmt.Errorf("%s is not there: run scripts/build.sh, or set TMS_LIBRARY to the path of a "+
				"libtms.so that has it beside it", file)
		}
	}
	return both, nil
}

func preloadable(library string) error {
	if strings.ContainsFunc(library, separates) {
		return fmt.Errorf("LD_PRELOAD takes no path with a space or a colon, such as %q: copy the folder "+
			"elsewhere and set TMS_LIBRARY to libtms.so in it", library)
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// libraryQuestion is what the command without a command is asked to print alone: the library's path, or what a program is
// compiled and linked with.
type libraryQuestion struct{ path, compiled, linked bool }

// showLibrary is the command without a command: it prints what is asked, or how to use the library. Where there is no
// library, the answer is "no".
func showLibrary(root *cobra.Command, asked libraryQuestion) error {
	if asked.path && (asked.compiled || asked.linked) {
		return errors.New("--path is for LD_PRELOAD, and --cflags and --libs are for a compiler: give one or the others")
	}
	path, err := libraryPath()
	if err != nil {
		fmt.Fprintf(root.ErrOrStderr(), "tms: %v\n", err)
		return errNo
	}
	if asked.compiled || asked.linked {
		words, err := linking(path, asked.compiled, asked.linked)
		if err != nil {
			fmt.Fprintf(root.ErrOrStderr(), "tms: %v\n", err)
			return errNo
		}
		fmt.Fprintln(root.OutOrStdout(), words)
		return nil
	}
	if asked.path {
		fmt.Fprintln(root.OutOrStdout(), path)
		return nil
	}
	preloaded := "no"
	for _, entry := range strings.FieldsFunc(os.Getenv("LD_PRELOAD"), separates) {
		if doctor.IsLibrary(entry) && (isFile(entry) || !strings.Contains(entry, "/")) {
			preloaded = "yes"
		}
	}
	fmt.Fprintf(root.OutOrStdout(), `tms %s
library    %s
preloaded  %s
to use it  LD_PRELOAD=%s python your_script.py
to try it  tms demo          tms --help has the other commands
`, version, path, preloaded, shellQuoted(path))
	return nil
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "version",
		Short:  "Print the version",
		Args:   noArguments,
		Hidden: true, // as --version is
		Run: func(command *cobra.Command, _ []string) {
			fmt.Fprintf(command.OutOrStdout(), "tms %s\n", version)
		},
	}
}

var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// shellQuoted returns a word as it must be typed into a shell.
func shellQuoted(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'"'"'`) + "'"
}
