package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/group"
)

// foretelling prints what would happen to one process after another.
type foretelling struct {
	*steering
	planning *group.Planning
	plans    []group.Plan
	outcomes []group.Outcome
}

func (s *steering) planning(force bool) *group.Planning {
	return group.NewPlanning(s.request("").Tag, force)
}

// plan prints what would happen to each process.
func (s *steering) plan(command *cobra.Command, planning *group.Planning, op string, pids []int) error {
	f := foretelling{steering: s, planning: planning, plans: []group.Plan{}}
	f.foretell(command, op, pids...)
	return f.conclude(command)
}

func (f *foretelling) foretell(command *cobra.Command, op string, pids ...int) {
	for _, pid := range pids {
		plan, o := f.planning.Of(context.Background(), pid, op)
		f.plans, f.outcomes = append(f.plans, plan), append(f.outcomes, o)
		if !f.asJSON {
			fmt.Fprint(command.OutOrStdout(), planText(&plan))
		}
		complain(command, o)
	}
}

func (f *foretelling) conclude(command *cobra.Command) error {
	return f.steering.conclude(command, f.plans, f.outcomes)
}

func driverText(d *group.PlanDriver, pid int) string {
	text := fmt.Sprintf("%d: the driver would first take %s of ", pid, readable.Bytes(d.Bytes))
	if d.Free == nil {
		return text + d.UUID + ", which NVML does not show\n"
	}
	text += fmt.Sprintf("GPU %d, and wants a margin of %s; %s free", d.GPU, readable.Bytes(d.Margin),
		readable.Bytes(*d.Free))
	if len(d.Asking) > 0 {
		text += "; its lock is wanted by " + strings.Trim(fmt.Sprint(d.Asking), "[]")
	}
	return text + "\n"
}

func planText(m *group.Plan) string {
	var text strings.Builder
	verb, done, others := "free", "pause", "unmap"
	if m.Op == control.Resume {
		verb, done, others = "take", "resume", "map"
	} else if m.Op == control.Move {
		done = "move"
	}
	if m.Bytes+m.Imported == 0 && len(m.Legs) == 0 && len(m.Driver) == 0 && m.Error == "" {
		return fmt.Sprintf("%d: nothing to %s\n", m.PID, done)
	}
	for _, d := range m.Driver {
		text.WriteString(driverText(&d, m.PID))
	}
	var lost []string
	for _, d := range m.Devices {
		var tags []string
		for _, tag := range d.Tags {
			name := readable.Printable(tag.Tag)
			tags = append(tags, readable.Bytes(tag.Bytes)+" of "+name)
			if tag.WithoutContents > 0 && !slices.Contains(lost, name) {
				lost = append(lost, name)
			}
		}
		fmt.Fprintf(&text, "%d: would %s %s of %s: %s", m.PID, verb, readable.Bytes(d.Bytes),
			fleet.Name(d.GPU, d.UUID, d.Device), strings.Join(tags, ", "))
		if d.Free != nil {
			fmt.Fprintf(&text, "; %s free", readable.Bytes(*d.Free))
		} else if m.Op == control.Resume {
			text.WriteString("; what is free is not known: NVML does not show the GPU")
		}
		text.WriteByte('\n')
	}
	if m.Imported > 0 {
		fmt.Fprintf(&text, "%d: would %s "+ofOthers+"\n", m.PID, others, readable.Bytes(m.Imported))
	}
	for _, leg := range m.Legs {
		how := ""
		if leg.Room == 0 {
			how = "; contents go through host memory"
		}
		fmt.Fprintf(&text, "%d: would move %s from GPU %d to GPU %d; %s free%s\n", m.PID, readable.Bytes(leg.Bytes),
			leg.FromGPU, leg.ToGPU, readable.Bytes(leg.Free), how)
	}
	if m.WithoutContents > 0 {
		fmt.Fprintf(&text, "%d: would %s%s: %s\n", m.PID, verb, without(" ", m.WithoutContents),
			strings.Join(lost, ", "))
	}
	if m.HostBytes > 0 {
		available := ""
		if m.HostAvailableBytes != nil {
			available = fmt.Sprintf("; %s available", readable.Bytes(*m.HostAvailableBytes))
		}
		fmt.Fprintf(&text, "%d: would take %s of host memory for contents%s\n", m.PID, readable.Bytes(m.HostBytes),
			available)
	}
	return text.String()
}
