package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/control"
)

// duration is a flag's time: a number of seconds, or numbers with units.
type duration struct {
	time.Duration
	least time.Duration
}

const longest = control.MaxSeconds * time.Second

func (d *duration) Set(text string) error {
	seconds, err := strconv.ParseFloat(text, 64)
	given := control.Seconds(min(seconds, control.MaxSeconds+1))
	if err != nil {
		given, err = time.ParseDuration(text)
	}
	if err != nil || given < d.least || given > longest || math.IsNaN(seconds) {
		return fmt.Errorf("give a time from %v to a year, such as 60, 90s, 10m or 2h", d.least)
	}
	d.Duration = given
	return nil
}

func (d *duration) String() string {
	if d.Duration == 0 {
		return "0"
	}
	return strings.Replace(d.Duration.String(), "m0s", "m", 1)
}

func (d *duration) Type() string { return "duration" }

// addTime adds a flag that takes a time; otherwise is its default.
func addTime(command *cobra.Command, d *duration, name string, otherwise time.Duration, usage string) {
	d.Duration = otherwise
	command.Flags().Var(d, name, usage)
	completes(command, name)
}
