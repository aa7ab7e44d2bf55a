package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// perfettoColumns is how many values a counter has at most.
const perfettoColumns = 20000

// event is one of Chrome's trace event format, which Perfetto reads. Times are in microseconds.
type event struct {
	Phase string  `json:"ph"`
	Name  string  `json:"name"`
	PID   int     `json:"pid"`
	TID   int     `json:"tid,omitempty"`
	At    float64 `json:"ts"`
	Took  float64 `json:"dur,omitempty"`
	Args  any     `json:"args,omitempty"`
}

// WritePerfetto writes recordings as a Chrome trace: a counter for each tag, a slice for each pause, resume and move.
// Errors: trace.ErrMalformed, the operating system's, the writer's.
func WritePerfetto(to io.Writer, paths []string) error {
	processes, err := readAll(paths)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(to)
	separator := `{"displayTimeUnit":"ms","traceEvents":[` + "\n"
	write := func(e event) {
		line, err := json.Marshal(e)
		if err == nil {
			_, _ = out.WriteString(separator) // an error is kept for Flush
			_, _ = out.Write(line)
			separator = ",\n"
		}
	}
	c := newColumns(processes, perfettoColumns)
	zero, _ := span(processes)
	micros := func(at int64) float64 { return float64(at-zero) / 1e3 }
	const tid = 1
	for _, p := range processes {
		write(event{Phase: "M", Name: "process_name", PID: p.pid, Args: map[string]string{"name": p.label()}})
		write(event{Phase: "M", Name: "thread_name", PID: p.pid, TID: tid, Args: map[string]string{"name": "pauses and resumes"}})
		var all [metrics]envelope
		for metric := range metrics {
			all[metric] = c.envelope(p.steps, len(p.series), metric)
		}
		for i, s := range p.series {
			last := map[string]uint64{}
			for column := range c.count() {
				now := map[string]uint64{}
				changed := column == 0
				for metric, name := range metricNames {
					now[name] = all[metric].atMost[i][column]
					changed = changed || now[name] != last[name]
				}
				if changed {
					write(event{Phase: "C", Name: s.label() + ", bytes", PID: p.pid, At: micros(c[column]), Args: now})
					last = now
				}
			}
		}
		for _, o := range p.operations {
			write(event{Phase: "X", Name: o.label(), PID: p.pid, TID: tid, At: micros(o.from),
				Took: float64(o.took) / float64(time.Microsecond), Args: o.describe(zero)})
		}
	}
	if _, err := out.WriteString("\n]}\n"); err != nil {
		return err
	}
	return out.Flush()
}

func readAll(paths []string) ([]*process, error) {
	var processes []*process
	for _, path := range paths {
		p, err := read(path)
		if err != nil {
			return nil, err
		}
		p.merge()
		processes = append(processes, p)
	}
	return processes, nil
}

// label is a process in words.
func (p *process) label() string { return fmt.Sprintf("%d %.80s", p.pid, p.command) }

func (s *series) label() string {
	name := s.Tag
	switch {
	case s.Others > 0:
		return fmt.Sprintf("%d others", s.Others)
	case s.Plain:
		name = "not pausable"
	}
	if s.Device < 0 {
		return name
	}
	return fmt.Sprintf("%s, device %d", name, s.Device)
}

func (o *operation) label() string {
	if o.tag == "" {
		return o.kind.String()
	}
	return o.kind.String() + " " + o.tag
}

// described is an operation for people. Times are seconds.
type described struct {
	Kind    string  `json:"kind"`
	Tag     string  `json:"tag"` // "": all
	From    float64 `json:"from"`
	Took    float64 `json:"took"`
	Bytes   uint64  `json:"bytes"`
	Copied  uint64  `json:"copied"`
	Rate    float64 `json:"gb_per_s"` // of Bytes in Took
	Waited  float64 `json:"waited"`
	Copying float64 `json:"copying"`
	Driver  float64 `json:"driver"`
	Bound   string  `json:"bound"` // by what most of the time went to
	Code    int     `json:"code"`  // 0: done
	Over    bool    `json:"over"`
}

func (o *operation) describe(zero int64) described {
	driver := max(0, o.took-o.waited-o.copying)
	d := described{Kind: o.kind.String(), Tag: o.tag, From: time.Duration(o.from - zero).Seconds(), Took: o.took.Seconds(), Bytes: o.bytes,
		Copied: o.copied, Waited: o.waited.Seconds(), Copying: o.copying.Seconds(), Driver: driver.Seconds(), Code: o.code, Over: o.over,
		Bound: "driver calls"}
	if o.took > 0 {
		d.Rate = float64(o.bytes) / o.took.Seconds() / 1e9
	}
	if o.copying > driver && o.copying >= o.waited {
		d.Bound = "copying"
	} else if o.waited > driver {
		d.Bound = "waiting"
	}
	if !o.over {
		d.Driver, d.Bound = 0, "not known"
	}
	return d
}
