// Package tree takes snapshots of running programs, and restores them: a process and all below it, as one. Group pauses
// and parks those that tms steers, CRIU dumps all of them, and package snapshot keeps the images and the contents.
package tree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"tms/internal/control/client"
	"tms/internal/snapshot"
)

// Tree is a process and all below it.
type Tree struct {
	Processes []snapshot.Process // the first is above all others
	Steered   []int              // those that listen to tms
	Job       bool
	Streams   map[string]int
}

// Find looks at a process and all below it, and changes none. Errors: there is no such process; one of them has the GPU
// and cannot be steered.
func Find(pid int) (*Tree, error) { return find(pid, client.CanWake) }

// wake has those listen that use CUDA or NVML without pausable memory.
func (t *Tree) wake() error {
	for i := range t.Processes {
		p := &t.Processes[i]
		if !p.Steered || p.Sockets != "" {
			continue
		}
		connection, err := client.DialOrWake(p.PID)
		if err != nil {
			return fmt.Errorf("process %d uses CUDA or NVML: %w", p.PID, err)
		}
		connection.Close()
		p.Sockets = connection.Directory
	}
	return nil
}

func find(pid int, canWake func(pid int) bool) (*Tree, error) {
	t := &Tree{Streams: map[string]int{}}
	children, err := parents()
	if err != nil {
		return nil, err
	}
	if _, err = os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
		return nil, fmt.Errorf("there is no process %d", pid)
	}
	session, err := unix.Getsid(pid)
	if err == nil && session == 0 {
		return nil, fmt.Errorf("the session of process %d began outside of this PID namespace, so CRIU cannot make it again: "+
			"start the program by setsid (setsid tms run ...)", pid)
	}
	t.add(pid, 0, children)
	for i, p := range t.Processes {
		if hasRing(p.PID) {
			return nil, fmt.Errorf("process %d uses io_uring, which CRIU cannot dump, as uvloop does (sglang, vllm serve). "+
				"Start the program again by tms run --no-io-uring", p.PID)
		}
		connection, err := client.Dial(p.PID)
		if err == nil {
			connection.Close()
			t.Processes[i].Sockets = connection.Directory
		}
		if err == nil || canWake(p.PID) {
			t.Processes[i].Steered = true
			t.Steered = append(t.Steered, p.PID)
		} else if has := usesGPU(p.PID); has != "" {
			return nil, fmt.Errorf("process %d has %s open, and tms cannot have it closed: %w", p.PID, has, err)
		}
	}
	t.Job = err != nil || session != pid
	t.findStreams()
	return t, nil
}

// again looks at the tree once more, while it stands still. Processes may have begun and ended since, but none that tms
// steers: it would not be parked.
func (t *Tree) again() (*Tree, error) {
	now, err := find(t.Processes[0].PID, func(int) bool { return false })
	if err == nil && !slices.Equal(now.Steered, t.Steered) {
		err = fmt.Errorf("the processes with GPU memory were %v, and became %v before all stood still: take the snapshot again",
			t.Steered, now.Steered)
	}
	return now, err
}

// now lists its processes again, which may have begun others.
func (t *Tree) now() []snapshot.Process {
	children, _ := parents() // of all that can be listed
	now := &Tree{}
	now.add(t.Processes[0].PID, 0, children)
	return now.Processes
}

// with returns its processes, with the contents that were saved of them.
func (t *Tree) with(saved []snapshot.Process) []snapshot.Process {
	for i := range t.Processes {
		p := &t.Processes[i]
		if at := slices.IndexFunc(saved, func(s snapshot.Process) bool { return s.PID == p.PID }); at >= 0 {
			p.Contents, p.Parts = saved[at].Contents, saved[at].Parts
		}
	}
	return t.Processes
}

// closed returns an error if a process, paused and parked, still has files of the driver, which CRIU does not dump.
func (t *Tree) closed() error {
	for _, p := range t.Processes {
		if has := usesGPU(p.PID); has != "" {
			return fmt.Errorf("process %d (%s) still has %s open after all of it was paused, and CRIU cannot dump that. A child "+
				"of fork has the files of its parent: start it by spawn or exec. Or the file was opened past CUDA and NVML: close "+
				"it for the snapshot", p.PID, strings.Join(p.Command, " "), has)
		}
	}
	return nil
}

func (t *Tree) add(pid, parent int, children map[int][]int) {
	command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	words := strings.Split(strings.TrimRight(string(command), "\x00"), "\x00")
	var user unix.Stat_t
	_ = unix.Stat(fmt.Sprintf("/proc/%d", pid), &user)
	t.Processes = append(t.Processes, snapshot.Process{PID: pid, Parent: parent, Command: words, User: int(user.Uid)})
	for _, child := range children[pid] {
		t.add(child, pid, children)
	}
}

// parents lists the children of each process.
func parents() (children map[int][]int, err error) {
	entries, err := os.ReadDir("/proc")
	children = map[int][]int{}
	for _, entry := range entries {
		pid, notOne := strconv.Atoi(entry.Name())
		stat, gone := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if notOne != nil || gone != nil {
			continue
		}
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 {
			parent, _ := strconv.Atoi(string(fields[1]))
			children[parent] = append(children[parent], pid)
		}
	}
	for _, all := range children {
		slices.Sort(all)
	}
	return children, err
}

// hasRing reports whether a process has an io_uring open.
func hasRing(pid int) bool {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(links, func(link string) bool {
		to, _ := os.Readlink(link)
		return to == "anon_inode:[io_uring]"
	})
}

// usesGPU names the files of the NVIDIA driver that a process has open or mapped, or returns "".
func usesGPU(pid int) string {
	const prefix = "/dev/nvidia"
	var names []string
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, prefix) {
			names = append(names, to)
		}
	}
	maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	for line := range strings.Lines(string(maps)) {
		if _, name, found := strings.Cut(line, prefix); found {
			names = append(names, prefix+strings.TrimSuffix(name, "\n"))
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}

// findStreams finds which standard streams of the first process are pipes of which the other end is outside, or
// terminals.
func (t *Tree) findStreams() {
	ends := map[string]int{} // how many ends of a pipe the tree has: 1 for one that reads, 2 for one that writes
	for _, p := range t.Processes {
		links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.PID))
		for _, link := range links {
			if name, mode := pipeOf(link); name != "" {
				ends[name] |= mode
			}
		}
	}
	for number := range 3 {
		name, _ := pipeOf(fmt.Sprintf("/proc/%d/fd/%d", t.Processes[0].PID, number))
		if _, has := t.Streams[name]; name != "" && !has && ends[name] != 3 {
			t.Streams[name] = number
		}
	}
}

// pipeOf returns CRIU's name of the pipe that a descriptor stands for, and which end it is: 1 if it reads, 2 if it writes.
func pipeOf(link string) (name string, end int) {
	name, err := os.Readlink(link)
	if err != nil || !strings.HasPrefix(name, "pipe:[") {
		return "", 0
	}
	info, err := os.Lstat(link) // the mode of the link is that of the descriptor
	if err != nil {
		return "", 0
	}
	if info.Mode().Perm()&0o400 != 0 {
		end |= 1
	}
	if info.Mode().Perm()&0o200 != 0 {
		end |= 2
	}
	return name, end
}
