package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// notTaken are libraries that hand their buffers to network cards and to other processes, which a pause would
// pull them away from.
var notTaken = []string{"libnccl.so", "libnvshmem_host.so", "libnvshmem.so", "libucp.so", "libuct.so", "libucs.so", "libfabric.so"}

func runCommand() *cobra.Command {
	var tag, backup, trace string
	var incremental bool
	command := &cobra.Command{
		Use:   "run [flags] -- COMMAND [ARGUMENT...]",
		Short: "Run a program with all of its CUDA memory pausable",
		Long: `Runs a program with libtms.so and libtms_reach.so preloaded and every allocation in a region, also those
of a static libcudart, of libraries that find CUDA's functions by name (JAX, CuPy), and of its children.
The program, or a library in it, pauses and resumes by tms.pause and tms.resume, or tms_pause and
tms_resume of tms.h.

Memory of ` + strings.Join(notTaken, ", ") + ` stays CUDA's own; TMS_EXCLUDE names more.

The command takes the place of tms: its exit status and the signals that reach it are its own.`,
		Example: `  tms run -- python train.py
  tms run --backup host --incremental --tag model -- python serve.py`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) == 0 || arguments[0] == "" {
				return errors.New("name the command to run: tms run -- python train.py")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, arguments []string) error {
			set := map[string]string{"TMS_INIT_ENABLE": "1"}
			switch backup {
			case "none":
			case "host":
				set["TMS_INIT_ENABLE_CPU_BACKUP"] = "1"
			case "disk":
				set["TMS_INIT_ENABLE_DISK_BACKUP"] = "1"
			default:
				return fmt.Errorf("--backup %s: contents can wait in host memory (host) or in files (disk), or not be kept (none)", backup)
			}
			if incremental {
				if backup != "host" {
					return errors.New("--incremental is of --backup host: copies in host memory are what it keeps")
				}
				set["TMS_INIT_ENABLE_INCREMENTAL_BACKUP"] = "1"
			}
			if tag != "" {
				set["TMS_INIT_TAG"] = tag
			}
			if trace != "" {
				set["TMS_TRACE"] = trace
			}
			libraries, err := libraries()
			if err != nil {
				return err
			}
			set["LD_PRELOAD"] = joined(append(libraries, strings.FieldsFunc(os.Getenv("LD_PRELOAD"), separates)...))
			set["TMS_EXCLUDE"] = joined(append(notTaken, strings.Split(os.Getenv("TMS_EXCLUDE"), ":")...))
			program, err := exec.LookPath(arguments[0])
			if err != nil {
				return fmt.Errorf("%s cannot be run: %w", arguments[0], errors.Unwrap(err))
			}
			for name, value := range set {
				if err := os.Setenv(name, value); err != nil {
					return err
				}
			}
			return fmt.Errorf("%s cannot be run: %w", program, syscall.Exec(program, arguments, os.Environ()))
		},
	}
	command.Flags().SetInterspersed(false)
	command.Flags().StringVar(&tag, "tag", "", "the tag of what it allocates (default \"default\")")
	command.Flags().StringVar(&backup, "backup", "none", "where contents wait while paused: host, disk or none")
	command.Flags().BoolVar(&incremental, "incremental", false, "of host copies, make only those anew whose contents have changed")
	command.Flags().StringVar(&trace, "trace", "", "a file to record allocations in (%p: the process)")
	return command
}

func separates(r rune) bool { return r == ' ' || r == ':' || r == '\t' || r == '\n' }

// joined is the names once each, with colons between.
func joined(names []string) string {
	var kept []string
	seen := map[string]bool{"": true}
	for _, name := range names {
		if !seen[name] {
			seen[name] = true
			kept = append(kept, name)
		}
	}
	return strings.Join(kept, ":")
}

// libraries are the paths of those to preload: TMS_LIBRARY, or lib/ beside the folder of this command; and the other
// beside that.
func libraries() ([]string, error) {
	path := os.Getenv("TMS_LIBRARY")
	if path == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("libtms.so is looked for beside this command, whose own path is not known: %w", err)
		}
		path = filepath.Join(filepath.Dir(filepath.Dir(self)), "lib", "libtms.so")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	both := []string{path, filepath.Join(filepath.Dir(path), "libtms_reach.so")}
	for _, file := range both {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("%s is not there: run scripts/build.sh, or set TMS_LIBRARY to the path of libtms.so", file)
		}
		if strings.ContainsFunc(file, separates) {
			return nil, fmt.Errorf("LD_PRELOAD takes no path with a space or a colon, such as %q: copy the folder elsewhere and set TMS_LIBRARY to libtms.so in it", file)
		}
	}
	return both, nil
}
