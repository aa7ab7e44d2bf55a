package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"
)

// perfettoColumns is the most values that a counter can have.
const perfettoColumns = 20000

// event is an event of Chrome's trace event format, which Perfetto reads. Times are in microseconds.
type event struct {
	Phase string  `json:"ph"`
	Name  string  `json:"name"`
	PID   int     `json:"pid"`
	TID   int     `json:"tid,omitempty"`
	At    float64 `json:"ts"`
	Took  float64 `json:"dur,omitempty"`
	Args  any     `json:"args,omitempty"`
}

// WritePerfetto writes recordings as a Chrome trace: a counter for each tag, a slice for each operation. Errors:
// trace.ErrMalformed, the operating system's, the writer's.
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
			_, _ = out.WriteString(separator) // Flush returns an error
			_, _ = out.Write(line)
			separator = ",\n"
		}
	}
	c := newColumns(processes, perfettoColumns)
	zero, _ := span(processes)
	micros := func(at int64) float64 { return float64(at-zero) / 1e3 }
	const tid = 1
	for _, p := range processes {
		write(event{Phase: "M", Name: "process_name", PID: p.PID,
			Args: map[string]string{"name": fmt.Sprintf("%d %.80s", p.PID, p.Command)}})
		var labels []string
		for _, place := range p.Places {
			labels = append(labels, fmt.Sprintf("device %d: %s", place.Device, place.UUID))
		}
		write(event{Phase: "M", Name: "process_labels", PID: p.PID,
			Args: map[string]string{"labels": strings.Join(labels, ", ")}})
		write(event{Phase: "M", Name: "thread_name", PID: p.PID, TID: tid,
			Args: map[string]string{"name": "pauses, resumes and waits"}})
		var all [metrics]envelope
		for metric := range metrics {
			all[metric] = c.envelope(p.steps, len(p.Series), metric)
		}
		for i, s := range p.Series {
			last := map[string]uint64{}
			for column := range c.count() {
				now := map[string]uint64{}
				changed := column == 0
				for metric, name := range metricNames {
					now[name] = all[metric].atMost[i][column]
					changed = changed || now[name] != last[name]
				}
				if changed {
					write(event{Phase: "C", Name: s.Label + ", bytes", PID: p.PID, At: micros(c[column]), Args: now})
					last = now
				}
			}
		}
		for _, o := range p.operations {
			write(event{Phase: "X", Name: strings.TrimSpace(o.Kind + " " + o.Tag), PID: p.PID, TID: tid,
				At: micros(o.from), Took: float64(o.took) / float64(time.Microsecond), Args: o.describe(zero)})
		}
	}
	if _, err := out.WriteString("\n]}\n"); err != nil {
		return err
	}
	return out.Flush()
}
