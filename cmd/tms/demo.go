package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	seesGPU    = "import sys, torch; sys.exit(not torch.cuda.is_available())"
	demoMemory = 256 << 20 // of the simulated device
)

func demoCommand() *cobra.Command {
	return &cobra.Command{
		Use: "demo",

		DisableFlagsInUseLine: true,
		Short:                 "Run a training that lends its GPU memory out",
		Long: `Trains, pauses in the middle, lends the memory to another process, resumes and
trains on. Then it trains without tms, to compare: all figures must be the same.
It uses PyTorch if that sees a GPU, or else plain Python and a simulated GPU. It
takes seconds, and leaves nothing behind. The last line is a JSON object; the
exit status is 0 if all in it is true.`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(command *cobra.Command, _ []string) error {
			err := runDemo(command)
			fmt.Fprintf(command.ErrOrStderr(), "tms: %v\n", err)
			return errNo
		},
	}
}

// runDemo becomes the training, so it returns only an error.
func runDemo(command *cobra.Command) error {
	preload, err := libraryPath()
	if err != nil {
		return err
	}
	if err := preloadable(preload); err != nil {
		return err
	}
	installed, err := installedLibrary()
	if err != nil {
		return err
	}
	// In a wheel the package has all files; in a checkout build/ has what is built, and pymodule/ what is written.
	root := filepath.Dir(filepath.Dir(installed))
	packages, examples := filepath.Dir(root), filepath.Join(root, "examples")
	if !isFile(filepath.Join(examples, "train.py")) {
		packages = filepath.Join(packages, "pymodule")
		examples = filepath.Join(packages, "examples")
	}
	interpreter := python()
	if interpreter == "" {
		if interpreter, err = exec.LookPath("python3"); err != nil {
			return errors.New("the demo is written in Python, and there is no python3: install Python 3.9 or newer")
		}
	}

	set := map[string]string{"LD_PRELOAD": preload}
	set["PYTHONPATH"] = joined([]string{packages, os.Getenv("PYTHONPATH")})
	device := "gpu"
	looking := exec.Command(interpreter, "-c", seesGPU)
	looking.Env = environment(os.Environ(), map[string]string{"PYTHONPATH": set["PYTHONPATH"]})
	if looking.Run() == nil {
		fmt.Fprintln(command.OutOrStdout(), "demo: training with PyTorch on the GPU")
	} else {
		device = "simulator"
		fmt.Fprintln(command.OutOrStdout(),
			"demo: PyTorch sees no GPU: training in plain Python on the simulator")
		if err := simulated(installed, set); err != nil {
			return err
		}
		set["CUDASIM_DEVICES"], set["CUDASIM_MEMORY"] = "1", fmt.Sprint(demoMemory)
		set["CUDASIM_SHARED"] = fmt.Sprint("tms-demo-", os.Getpid()) // the memory of this demo alone
	}
	training := []string{interpreter, filepath.Join(examples, "train.py"), "--device", device}
	err = syscall.Exec(interpreter, training, environment(os.Environ(), set))
	return fmt.Errorf("%s cannot be run: %w", interpreter, err)
}
