// Package doctor examines a machine and a program, and reports whether libtms.so can interpose the program's CUDA
// memory there. It changes nothing, and starts only the program's loader, to ask it: a start of the program, even one
// that the library ends before main, would run the constructors of the program's other libraries.
package doctor

import (
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
)

// Report has all findings. Its JSON form is the interface of `tms doctor --json`.
type Report struct {
	CanInterpose bool      `json:"can_interpose"` // no finding is an error
	Driver       Driver    `json:"driver"`
	Devices      []Device  `json:"devices"`
	Host         Host      `json:"host"`
	Library      *Library  `json:"library"` // null: libtms.so was not found
	Program      *Program  `json:"program"` // null: only the machine was examined
	Findings     []Finding `json:"findings"`
}

// Severity says how much a finding matters.
type Severity string

// Only an error means that memory cannot be made pausable; a warning means that some of it cannot,
// or that something else will go wrong.
const (
	OK      Severity = "ok"
	Note    Severity = "note"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Finding is one result: a line that says what was found, and a line that says what to do about it ("": nothing). ID is
// stable, for programs that read the JSON.
type Finding struct {
	Severity Severity `json:"severity"`
	ID       string   `json:"id"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

// Examine examines the machine, and a process (0: none) or a program (a path, or a name to search for in PATH; "":
// none). It returns an error if there is nothing to report on: no such program, process or library.
func Examine(pid int, program string) (*Report, error) {
	r := &Report{Devices: []Device{}, Findings: []Finding{}}
	env := parseEnvironment(os.Environ())
	var process *process
	var main *image
	var err error
	switch {
	case pid != 0:
		if process, err = openProcess(pid); err != nil {
			return nil, err
		}
		env = process.environment
	case program != "":
		if r.Program, main, err = openProgram(program); err != nil {
			return nil, err
		}
	}
	if err = r.findLibrary(process); err != nil {
		return nil, err
	}

	r.examineDriver()
	r.examineSnapshots()
	r.examineAddressSpace(process)
	switch {
	case process != nil:
		r.examineProcess(process)
	case main != nil:
		r.examineProgram(main, env)
	}
	r.examineEnvironment(env)
	r.CanInterpose = r.errors() == 0
	return r, nil
}

func (r *Report) add(severity Severity, id, what, do string) {
	r.Findings = append(r.Findings, Finding{severity, id, what, do})
}

func (r *Report) errors() (n int) {
	for _, f := range r.Findings {
		if f.Severity == Error {
			n++
		}
	}
	return n
}

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name string, value any) {
		fmt.Fprintf(table, "%s\t%s\n", name, readable.Printable(fmt.Sprint(value)))
	}
	row("driver", r.Driver)
	for _, d := range r.Devices {
		row(fleet.Name(d.GPU, "", d.Ordinal), d)
	}
	if r.Library != nil {
		row("libtms.so", r.Library.Path)
	}
	if p := r.Program; p != nil {
		row("program", p)
		for _, l := range p.Cudart.Libraries {
			row("cudart", l.Path)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}

	fmt.Fprintln(w)
	for _, f := range r.Findings {
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Severity, f.ID, readable.Printable(f.What))
		if f.Do != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", readable.Printable(f.Do))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}

	what := "A program on this machine"
	if r.Program != nil {
		what = "The program"
	}
	can := "can"
	if !r.CanInterpose {
		can = "cannot"
	}
	_, err := fmt.Fprintf(w, "\n%s %s be interposed.\n", what, can)
	return err
}
