package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/nvml"
	"tms/internal/readable"
	"tms/vmm/stats"
)

// process is a row's process, or why it has not answered.
type process struct {
	control.ProcessState
	container
	Jobs   []string      `json:"jobs,omitempty"` // the launches that it belongs to
	here   int           // its number in this PID namespace, or 0
	absent bool          // it has ended, or does not listen
	Error  string        `json:"error,omitempty"`
	Bytes  []deviceBytes `json:"bytes,omitempty"` // where they are asked for
}

// statuses asks these processes, or else all, at once. The one with the most device memory comes first.
func statuses(within time.Duration, pids ...int) []process {
	if len(pids) == 0 {
		pids, _ = client.List() // a directory that is not ours has nothing for us
	}
	found := make([]process, len(pids))
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() {
			connection, err := client.Look(pid)
			found[i].absent = err != nil
			if err == nil {
				defer connection.Close()
				found[i].here = connection.Peer
				found[i].container, found[i].Jobs = containerOf(fmt.Sprintf("/proc/%d/cgroup", connection.Peer)),
					jobsOf(connection.Peer)
				found[i].ProcessState, err = connection.Status(context.Background(), within)
			}
			if err != nil {
				found[i].Error = err.Error()
			}
			found[i].PID = pid
		})
	}
	all.Wait()
	slices.SortStableFunc(found, func(x, y process) int { return cmp.Compare(y.held(), x.held()) })
	return found
}

// ofLaunch keeps only the processes of a launch, or all if job is "".
func ofLaunch(job string, found []process) []process {
	return slices.DeleteFunc(found, func(p process) bool { return job != "" && !slices.Contains(p.Jobs, job) })
}

// ofWhom names a launch in words, or returns "" for all processes.
func ofWhom(job string) string {
	if job == "" {
		return ""
	}
	return "job " + readable.Printable(job)
}

// title returns the command, with the container that it runs in.
func (p *process) title() string {
	if short := p.short(); short != "" {
		return short + ": " + readable.Printable(p.Command)
	}
	return readable.Printable(p.Command)
}

// tagsOf yields the tags of a process, each with its device.
func tagsOf(state control.ProcessState) iter.Seq2[stats.Device, stats.Tag] {
	return func(yield func(stats.Device, stats.Tag) bool) {
		for _, d := range state.Stats.Devices {
			for _, tag := range d.Tags {
				if !yield(d, tag) {
					return
				}
			}
		}
	}
}

// held returns the bytes of device memory that a pause of the process would free.
func (p *process) held() (bytes uint64) {
	for _, tag := range tagsOf(p.ProcessState) {
		bytes += tag.PhysicalBytes
	}
	return bytes
}

func psCommand() *cobra.Command {
	var l listing
	command := &cobra.Command{
		Use:   "ps [PID...]",
		Short: "List the processes that can be paused from outside",
		Long: `Lists the processes of this user that can be paused, with a row for each tag on
each device. LIVE is what the program has allocated, HELD is the device memory
that it has now, and BACKUP says where contents wait.`,
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
	found := ofLaunch(l.job, statuses(time.Second, l.pids...))
	var missing error
	if len(l.pids) > 0 {
		found = slices.DeleteFunc(found, func(p process) bool {
			if p.absent {
				fmt.Fprintf(aside, "tms: %d: %s\n", p.PID, p.Error)
				missing = errNoProcess
			}
			return p.absent
		})
	}
	var unavailable error
	if l.inBytes && len(found) > 0 {
		var shown []nvml.Device
		shown, unavailable = gpus()
		measure(found, shown)
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

// columns returns the width of a terminal, or else COLUMNS, such as watch sets it.
func columns(to io.Writer) int {
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

// The columns of the table; those with room to spare shrink when it is wider than a terminal.
const (
	columnCommand = 1
	columnTag     = 3
	columnState   = 6
	tableWidth    = 80
	leastWidth    = 7
)

func writeProcesses(text *page, found []process, now time.Time) {
	table := [][]string{{"PID", "COMMAND", "DEVICE", "TAG", "LIVE", "HELD", "STATE", "BACKUP"}}
	for _, p := range found {
		table = append(table, rows(p, now)...)
	}
	width := make([]int, len(table[0]))
	total := len(width) - 1
	for column := range width {
		for _, row := range table {
			if column < len(row)-1 || len(row) == len(width) {
				width[column] = max(width[column], utf8.RuneCountInString(row[column]))
			}
		}
		total += width[column]
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
	for _, row := range table {
		var line string
		for column, cell := range row {
			switch {
			case len(row) < len(width) && column == len(row)-1: // text to the end of the line
				line += cell
			case column == columnCommand || column == columnTag || column == columnState:
				line += fmt.Sprintf("%-*s ", width[column], readable.Cut(cell, width[column]))
			default:
				line += fmt.Sprintf("%*s ", width[column], cell)
			}
		}
		fmt.Fprintln(text, strings.TrimRight(line, " "))
	}
	var all []process
	for _, p := range found {
		say(text, p, "a pause would free %s without contents",
			func(tag stats.Tag) uint64 { return tag.PauseWithoutContents })
		say(text, p, "paused %s without contents", func(tag stats.Tag) uint64 { return tag.WithoutContents })
		if p.lost() {
			text.line(fmt.Sprintf("%d: %s", p.PID, readable.Printable(p.Driver.Lost)))
		}
		say(text, p, "lost %s of other processes, which have ended or freed it",
			func(tag stats.Tag) uint64 { return tag.ImportedLost })
		if all == nil && p.Share != nil && p.Share.Waited >= 0 { // it may wait for what is not shown
			all = statuses(time.Second)
		}
		for _, words := range waitsOf(p, all) {
			text.line(fmt.Sprintf("%d: %s", p.PID, words))
		}
	}
}

// say writes a line if a process has such memory, with its tags.
func say(to *page, p process, words string, of func(stats.Tag) uint64) {
	var all uint64
	var names []string
	for _, tag := range tagsOf(p.ProcessState) {
		if bytes, name := of(tag), readable.Printable(tag.Tag); bytes > 0 {
			all += bytes
			names = append(slices.DeleteFunc(names, func(known string) bool { return known == name }), name)
		}
	}
	if all > 0 {
		to.line(fmt.Sprintf("%d: "+words+": %s", p.PID, readable.Bytes(all), strings.Join(names, ", ")))
	}
}

func rows(p process, now time.Time) (table [][]string) {
	pid, command := fmt.Sprint(p.PID), p.title()
	if p.Error != "" {
		return [][]string{{pid, readable.Printable(p.Error)}}
	}
	for d, tag := range tagsOf(p.ProcessState) {
		table = append(table, []string{pid, command, fmt.Sprint(d.Device), readable.Printable(tag.Tag),
			readable.Short(tag.LiveBytes), readable.Short(tag.PhysicalBytes), stateOf(p, d, tag, now), backup(tag)})
	}
	if table == nil {
		table = [][]string{{pid, command, "-", "-", "0", "0", "-", "0"}}
		if p.lost() {
			table[0][columnState] = "lost"
		}
	}
	return table
}

// lost reports whether the driver can never give the process back.
func (p *process) lost() bool { return p.Driver != nil && p.Driver.Lost != "" }

func stateOf(p process, d stats.Device, tag stats.Tag, now time.Time) string {
	switch {
	case p.lost():
		return "lost"
	case p.Doing != "" && d.Progress != nil:
		return doing(d.Progress.Operation)
	case p.Share != nil && p.Share.Waited >= 0:
		return "waits " + readable.Age(control.Seconds(p.Share.Waited))
	case tag.AllPaused() == 0:
		return "active"
	}
	word := "paused"
	if p.Stats.Everything {
		word = "out" // the driver has the rest
	}
	if tag.AllActive() > 0 {
		word = "partly"
	}
	return word + " " + readable.Age(now.Sub(time.UnixMilli(int64(tag.PausedSince*1000))))
}

// doing names what a process says that it is doing: pausing, resuming, moving.
func doing(operation string) string {
	return strings.TrimSuffix(readable.Printable(operation), "e") + "ing"
}

// backup returns how many bytes hold contents, and where.
func backup(tag stats.Tag) string {
	return strings.TrimSuffix(readable.Short(tag.BackupBytes)+" "+store(tag), " ")
}

// store returns where contents are held: "" where there are none.
func store(tag stats.Tag) string {
	peer := tag.BackupBytes - tag.HostBytes - tag.DiskBytes
	switch tag.BackupBytes {
	case 0:
		return ""
	case tag.HostBytes:
		return "host"
	case tag.DiskBytes:
		return "disk"
	case peer:
		return "peer"
	}
	return "mixed"
}

// container is where a process runs, by its control group; "" where that names none.
type container struct {
	Container string `json:"container,omitempty"` // 64 hexadecimal digits, as container runtimes number them
	Pod       string `json:"pod,omitempty"`       // the UID of a Kubernetes pod
}

var (
	containerNumber = regexp.MustCompile(`(?m)[/:-]([0-9a-f]{64})(?:\.scope)?(?:/|$)`)
	podNumber       = regexp.MustCompile(`(?m)[/-]pod([0-9a-f]{8}(?:[_-][0-9a-f]{4}){3}[_-][0-9a-f]{12}|[0-9a-f]{32})` +
		`(?:\.slice)?(?:[/:]|$)`)
)

// containerOf reads /proc/PID/cgroup: of Docker, Podman, containerd and CRI-O, below either version of control groups.
func containerOf(membership string) (found container) {
	text, _ := os.ReadFile(membership)
	if number := containerNumber.FindSubmatch(text); number != nil {
		found.Container = string(number[1])
	}
	if number := podNumber.FindSubmatch(text); number != nil {
		found.Pod = strings.ReplaceAll(string(number[1]), "_", "-") // systemd uses - for nesting
	}
	return found
}

// short returns enough digits to tell it from others.
func (c container) short() string {
	number := cmp.Or(c.Pod, c.Container)
	return number[:min(8, len(number))]
}
