package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/fleet"
	"tms/internal/machine/nvml"
	"tms/internal/turns"
	"tms/vmm/stats"
)

// ofWhom names a launch in words, or returns "" for all processes.
func ofWhom(job string) string {
	if job == "" {
		return ""
	}
	return "job " + readable.Printable(job)
}

func psCommand() *cobra.Command {
	var l listing
	command := &cobra.Command{
		Use:        "ps [PID...]",
		Short:      "List the processes that can be paused from outside",
		SuggestFor: []string{"list", "ls", "stats", "status"},
		Long: `Lists the processes of this user that can be paused, with a row for each tag on
each device. DEVICE is the GPU as nvidia-smi numbers it; "3 as 0" is GPU 3 that
the program calls 0. LIVE is what the program has allocated, HELD is the device
memory that it has now, and BACKUP says where contents wait.`,
		Example: `  tms ps
  tms ps 12345 --bytes
  tms ps --job 127.0.0.1:29500`,
		ValidArgsFunction: completeProcesses,
		RunE: func(command *cobra.Command, arguments []string) (err error) {
			if err = notEmpty(command, "job", "all"); err != nil {
				return err
			}
			if l.job != "" && len(arguments) > 0 {
				return errors.New("name the processes by number or by --job, not both")
			}
			if l.pids, err = processes(arguments); err != nil {
				return err
			}
			return l.show(command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	command.Flags().BoolVar(&l.asJSON, "json", false, "print one JSON array, with all statistics")
	command.Flags().BoolVar(&l.inBytes, "bytes", false, "list all that each process has, by library")
	command.Flags().BoolVar(&l.whole, "no-trunc", false, "do not shorten what is too wide for the terminal")
	addJob(command, &l.job)
	return command
}

// listing is one tms ps.
type listing struct {
	asJSON, inBytes, whole bool
	job                    string
	pids                   []int // none: all
}

func (l *listing) show(to, aside io.Writer) error {
	found := fleet.OfJob(l.job, fleet.Ask(time.Second, l.pids...))
	var missing error
	if len(l.pids) > 0 {
		found = slices.DeleteFunc(found, func(p fleet.Process) bool {
			if p.Absent {
				fmt.Fprintf(aside, "tms: %d: %s\n", p.PID, p.Error)
				missing = errNoProcess
			}
			return p.Absent
		})
	}
	var unavailable error
	if l.inBytes && len(found) > 0 {
		var shown []nvml.Device
		shown, unavailable = fleet.GPUs()
		fleet.Measure(found, shown)
	} else if len(found) > 0 {
		fleet.Number(found, fleet.Shown())
	}
	if l.asJSON {
		return cmp.Or(writeJSON(to, found), missing)
	}
	text := page{width: columns(to)}
	if l.whole {
		text.width = math.MaxInt
	}
	switch {
	case missing == nil && len(found) == 0:
		fmt.Fprintf(aside, "tms: no process of %s listens; see tms ps --help\n", cmp.Or(ofWhom(l.job), "this user"))
	case l.inBytes:
		writeBytes(&text, found, unavailable)
	case len(found) > 0:
		writeProcesses(&text, found, time.Now())
	}
	_, err := io.WriteString(to, text.String())
	return cmp.Or(err, missing)
}

// page collects text, and cuts its lines at a width.
type page struct {
	strings.Builder
	width int
}

func (p *page) line(words string) {
	p.WriteString(strings.TrimRight(readable.Cut(words, p.width), " ") + "\n")
}

// sentence writes words that end with what to do, so it breaks their lines and cuts nothing.
func (p *page) sentence(words string) {
	if p.width == math.MaxInt {
		p.line(words)
		return
	}
	line := ""
	for _, word := range strings.Fields(words) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > p.width {
			p.line(line)
			line = "   " // under the number of a process
		}
		if line += " " + word; len(line) == 1+len(word) {
			line = word
		}
	}
	p.line(line)
}

// columns returns the width of a terminal, or else COLUMNS, such as watch sets it.
func columns(to io.Writer) int {
	if out, ok := to.(*output); ok {
		to = out.to
	}
	if file, ok := to.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(file.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	if given, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && given > 0 {
		return given
	}
	return tableWidth
}

// The columns of the table. Where the table is wider than a terminal, the columns with room to spare shrink.
const (
	columnCommand = 1
	columnTag     = 3
	columnLive    = 4
	columnState   = 6
	columnBackup  = 7
	tableWidth    = 80
	leastWidth    = 7
)

func writeProcesses(text *page, found []fleet.Process, now time.Time) {
	table, width, total := tableOf(found, now, (*fleet.Process).Title)
	if total > text.width {
		table, width, total = tableOf(found, now, (*fleet.Process).Brief)
	}
	for ; total > text.width; total-- {
		wider := columnCommand
		if width[columnTag] > width[columnCommand] {
			wider = columnTag
		}
		if width[wider] <= leastWidth {
			break
		}
		width[wider]--
	}
	var left []int // out of the table, the least important first
	for _, column := range []int{columnLive, columnBackup, columnCommand} {
		if total > text.width {
			left = append(left, column)
			total -= width[column] + 1
		}
	}
	for at, row := range table {
		var line string
		for column, cell := range row {
			switch {
			case slices.Contains(left, column) && len(row) == len(width):
				continue
			case len(row) < len(width) && column == len(row)-1: // text to the end of the line
				line += cell
			case column == columnCommand || column == columnTag || column == columnState:
				line += fmt.Sprintf("%-*s ", width[column], readable.Cut(cell, width[column]))
			default:
				line += fmt.Sprintf("%*s ", width[column], cell)
			}
		}
		if line = strings.TrimRight(line, " "); at == 0 && len(left) > 0 {
			line += "…"
		}
		fmt.Fprintln(text, line)
	}
	sayUnknown(text, found)
	var waits *turns.Explanation
	for _, p := range found {
		for _, pause := range p.PausedBy {
			text.sentence(fmt.Sprintf("%d: %s", p.PID, fleet.Whose(p.PID, pause, now)))
		}
		say(text, p, "a pause would free %s without contents",
			func(tag stats.Tag) uint64 { return tag.PauseWithoutContents })
		say(text, p, "paused %s without contents", func(tag stats.Tag) uint64 { return tag.WithoutContents })
		for _, d := range p.Stats.Devices {
			if d.LimitRefused > 0 {
				text.sentence(fmt.Sprintf("%d: its limit of %s on %s has refused allocations: %d", p.PID,
					readable.Bytes(d.LimitBytes), fleet.Name(d.GPU, "", d.Device), d.LimitRefused))
			}
		}
		if p.Lost() {
			text.sentence(fmt.Sprintf("%d: %s", p.PID, readable.Printable(p.Driver.Lost)))
		}
		say(text, p, "lost %s of other processes, which have ended or freed it",
			func(tag stats.Tag) uint64 { return tag.ImportedLost })
		if p.Share == nil || p.Share.Waited < 0 {
			continue
		}
		if waits == nil { // its wait may be for a column that is not shown
			waits = turns.NewExplanation(fleet.Ask(time.Second))
		}
		for _, words := range waits.Waits(p) {
			text.sentence(fmt.Sprintf("%d: %s", p.PID, words))
		}
	}
}

// tableOf returns the table, the widths of its columns, and of all of it.
func tableOf(found []fleet.Process, now time.Time, name func(*fleet.Process) string) (table [][]string, width []int,
	total int) {
	table = [][]string{{"PID", "COMMAND", "DEVICE", "TAG", "LIVE", "HELD", "STATE", "BACKUP"}}
	for _, p := range found {
		table = append(table, rows(p, now, name(&p))...)
	}
	width = make([]int, len(table[0]))
	total = len(width) - 1
	for column := range width {
		for _, row := range table {
			if column < len(row)-1 || len(row) == len(width) {
				width[column] = max(width[column], utf8.RuneCountInString(row[column]))
			}
		}
		total += width[column]
	}
	return table, width, total
}

// sayUnknown writes a line for each GPU that NVML does not show, with the devices that it is.
func sayUnknown(to *page, found []fleet.Process) {
	var uuids []string
	devices := map[string][]string{}
	for _, p := range found {
		for _, d := range p.Stats.Devices {
			if d.GPU == nil && d.UUID != "" && len(d.Tags) > 0 {
				uuids = append(uuids, d.UUID)
				devices[d.UUID] = append(devices[d.UUID], fmt.Sprintf("device %d of %d", d.Device, p.PID))
			}
		}
	}
	for _, uuid := range fleet.Distinct(uuids) {
		to.sentence(fmt.Sprintf("NVML does not show %s: %s", readable.Printable(uuid), strings.Join(devices[uuid], ", ")))
	}
}

// say writes a line if a process has such memory, with its tags.
func say(to *page, p fleet.Process, words string, of func(stats.Tag) uint64) {
	var all uint64
	var names []string
	for _, tag := range p.Tags() {
		if bytes, name := of(tag), readable.Printable(tag.Tag); bytes > 0 {
			all += bytes
			names = append(slices.DeleteFunc(names, func(known string) bool { return known == name }), name)
		}
	}
	if all > 0 {
		to.sentence(fmt.Sprintf("%d: "+words+": %s", p.PID, readable.Bytes(all), strings.Join(names, ", ")))
	}
}

func rows(p fleet.Process, now time.Time, command string) (table [][]string) {
	pid := fmt.Sprint(p.PID)
	if p.Error != "" {
		return [][]string{{pid, readable.Printable(p.Error)}}
	}
	for d, tag := range p.Tags() {
		table = append(table, []string{pid, command, fleet.Label(d.GPU, d.Device), readable.Printable(tag.Tag),
			readable.Short(tag.LiveBytes), readable.Short(tag.PhysicalBytes), p.Condition(d, tag, now), backup(tag)})
	}
	if table == nil {
		table = [][]string{{pid, command, "-", "-", "0", "0", "-", "0"}}
		if p.Lost() {
			table[0][columnState] = "lost"
		}
	}
	return table
}

// backup returns how many bytes hold contents, and where.
func backup(tag stats.Tag) string {
	return strings.TrimSuffix(readable.Short(tag.BackupBytes)+" "+fleet.Place(tag), " ")
}
