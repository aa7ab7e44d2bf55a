package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tms/vmm/pool"
)

// Of the simulator.
const (
	mostDevices = 16
	leastMemory = 2 << 20 // the granule of an allocation
)

// simulation are the flags of tms run for a machine without a GPU.
type simulation struct {
	on      bool
	devices int
	memory  string
}

func (s *simulation) add(command *cobra.Command) {
	flags := command.Flags()
	flags.BoolVar(&s.on, "simulate", false, "on simulated devices, without a GPU")
	flags.IntVar(&s.devices, "devices", 1, "with --simulate: `N` devices")
	flags.StringVar(&s.memory, "memory", "8G", "with --simulate: `BYTES` of each device")
	completes(command, "devices")
	completes(command, "memory")
}

// set adds the program's variables, so that it and its children use the simulator beside libtms.so's folder. They share
// devices with all programs that have the same CUDASIM_SHARED.
func (s *simulation) set(command *cobra.Command, library string, variables map[string]string) error {
	devices, memory := command.Flags().Changed("devices"), command.Flags().Changed("memory")
	switch {
	case !s.on && (devices || memory):
		return errors.New("--devices and --memory describe simulated devices: give --simulate, too")
	case !s.on:
		return nil
	case s.devices < 1 || s.devices > mostDevices:
		return fmt.Errorf("--devices %d: give a number from 1 to %d", s.devices, mostDevices)
	}
	size, err := sizeOf("--memory", s.memory)
	if err != nil {
		return err
	}
	if size < leastMemory {
		return fmt.Errorf("--memory %s: a device has at least 2MiB; give a number of bytes, such as 8G", s.memory)
	}
	if err := simulated(library, variables); err != nil {
		return err
	}
	if devices {
		variables["CUDASIM_DEVICES"] = strconv.Itoa(s.devices)
	}
	if memory {
		variables["CUDASIM_MEMORY"] = strconv.FormatUint(size, 10)
	}
	if _, named := os.LookupEnv("CUDASIM_SHARED"); !named {
		variables["CUDASIM_SHARED"] = "tms"
	}
	return nil
}

// simulated adds the variable with which a program uses the simulator beside libtms.so's folder.
func simulated(library string, variables map[string]string) error {
	folder := filepath.Join(filepath.Dir(filepath.Dir(library)), "sim")
	if !isFile(filepath.Join(folder, "libcuda.so.1")) {
		return fmt.Errorf("the simulator is not in %s: run scripts/build.sh, or install the wheel", folder)
	}
	variables["LD_LIBRARY_PATH"] = joined([]string{folder, os.Getenv("LD_LIBRARY_PATH")})
	return nil
}

// sizeOf reads a flag's size, such as 40GiB or 40G.
func sizeOf(what, text string) (size uint64, err error) {
	number := strings.TrimSuffix(text, "iB")
	if number != strings.TrimRight(number, "KMGT") {
		number += "iB"
	}
	options, err := pool.ParseOptions("size=" + number)
	if err == nil {
		size, err = options.Bytes("size", 0), options.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("%s %s: give a number of bytes, such as 40GiB", what, text)
	}
	if size == 0 {
		return 0, fmt.Errorf("%s %s: give more than 0 bytes, such as 40GiB", what, text)
	}
	return size, nil
}
