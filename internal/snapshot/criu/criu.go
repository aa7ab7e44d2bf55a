// Package criu finds CRIU, which dumps and restores processes, runs it, and says in words what it lacks or refuses.
package criu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Setting is the environment variable that names CRIU, where it is not on PATH.
const Setting = "TMS_CRIU"

// Program is a CRIU that can be run.
type Program struct {
	Path    string
	Version string // as 4.2.1
}

// Find finds CRIU by TMS_CRIU, on PATH, or where root's programs are. Errors: there is none, or it is too old for this
// kernel.
func Find(ctx context.Context) (*Program, error) {
	path := os.Getenv(Setting)
	if path == "" {
		for _, name := range []string{"criu", "/usr/local/sbin/criu", "/usr/sbin/criu"} {
			if found, err := exec.LookPath(name); err == nil {
				path = found
				break
			}
		}
	}
	if path == "" {
		return nil, fmt.Errorf("tms needs CRIU to dump and restore processes, and CRIU is not installed: install criu 4.2 "+
			"or later, or name it by %s (docs/snapshot.md)", Setting)
	}
	p := &Program{Path: path}
	text, err := p.command(ctx, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("%s --version: %w: name another CRIU by %s", path, err, Setting)
	}
	if found := versionLine.FindStringSubmatch(string(text)); found != nil {
		p.Version = found[1]
	}
	return p, tooOld(p.Version, Kernel())
}

var versionLine = regexp.MustCompile(`(?m)^Version:\s*(\d+(?:\.\d+)*)`)

// Kernel returns the release of the kernel.
func Kernel() string {
	var name unix.Utsname
	_ = unix.Uname(&name)
	return unix.ByteSliceToString(name.Release[:])
}

// tooOld refuses a CRIU that fails on the kernel.
func tooOld(version, kernel string) error {
	needs := "3.17"
	if !earlier(kernel, "6.16") { // CRIU 4.1 fails at each TCP socket there: "Can't get 1:16 opt"
		needs = "4.2"
	}
	if version == "" || earlier(version, needs) {
		return fmt.Errorf("CRIU %s is too old for Linux %s, which needs CRIU %s: install a later one, or name it by %s "+
			"(docs/snapshot.md)", version, kernel, needs, Setting)
	}
	return nil
}

// earlier compares the numbers at the beginning of two versions.
func earlier(version, than string) bool {
	numbers := func(of string) (all []int) {
		for part := range strings.SplitSeq(of, ".") {
			digits := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' })
			if digits >= 0 {
				part = part[:digits]
			}
			number, err := strconv.Atoi(part)
			if err != nil {
				break
			}
			all = append(all, number)
		}
		return all
	}
	is, needs := numbers(version), numbers(than)
	for i, number := range needs {
		if i >= len(is) || is[i] != number {
			return i >= len(is) || is[i] < number
		}
	}
	return false
}

// command does not hand on what would change CRIU itself.
func (p *Program) command(ctx context.Context, arguments ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, p.Path, arguments...)
	for _, entry := range os.Environ() {
		name, _, _ := strings.Cut(entry, "=")
		if !slices.Contains([]string{"LD_PRELOAD", "LD_LIBRARY_PATH", "CRIU_CONFIG_FILE"}, name) {
			c.Env = append(c.Env, entry)
		}
	}
	return c
}

// common are the flags of a dump and of a restore.
func (p *Program) common(op, images, work string, connected bool) []string {
	connections := "--tcp-close"
	if connected {
		connections = "--tcp-established"
	}
	arguments := []string{op, "--no-default-config", "--images-dir", images, "--work-dir", work, "--file-locks",
		connections, "--manage-cgroups=ignore", "-v3",
		// Its plugin for CUDA would take what tms has paused.
		"--libdir", work}
	if os.Geteuid() != 0 {
		arguments = append(arguments, "--unprivileged")
	}
	return arguments
}

// Dump says what to dump.
type Dump struct {
	PID    int
	Images *os.File // an empty folder, which may have no path
	Work   string   // a folder for its log
	Job    bool     // the process is not the leader of its session
	// Then, unless it is "", is a shell command that runs when all is dumped and stands still. If it fails, so does the
	// dump.
	Then string
	Ends bool // the tree ends after a dump that has not failed, else it goes on
	// Connected keeps TCP connections, which both have their ends in the tree.
	Connected bool
	// Lock is held as long as CRIU runs, unless it is nil: the end of this process does not end CRIU.
	Lock *os.File
}

// Run dumps a process and all below it.
func (d Dump) Run(p *Program) error {
	arguments := append(p.common("dump", "/proc/self/fd/3", d.Work, d.Connected), "--tree", strconv.Itoa(d.PID), "--log-file",
		"dump.log", "--network-lock", "skip", "--ext-unix-sk", "--link-remap", "--ghost-limit", "1G", "--force-irmap")
	if !d.Ends {
		arguments = append(arguments, "--leave-running")
	}
	if d.Then != "" {
		script := filepath.Join(d.Work, "then")
		text := "#!/bin/sh\n[ \"$CRTOOLS_SCRIPT_ACTION\" = post-dump ] || exit 0\n" + d.Then + "\n"
		if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
			return err
		}
		arguments = append(arguments, "--action-script", script)
	}
	if d.Job {
		arguments = append(arguments, "--shell-job")
	}
	return p.run(filepath.Join(d.Work, "dump.log"), append([]*os.File{d.Images}, locked(d.Lock)...), arguments...)
}

// Restore says what to restore.
type Restore struct {
	// Images is a folder that may have no path. CRIU opens it for itself, so it needs this process no more.
	Images *os.File `json:"-"`
	// Consume has CRIU take away from files of pages what it has read. No other restore may read them.
	Consume bool
	Work    string // a folder for its log, which it is alone to write to
	Job     bool
	// Connected makes the TCP connections again that a dump has kept; else they are closed.
	Connected bool
	// Inherited are files that take the place of what the processes had from outside of their tree, by CRIU's names, such
	// as "pipe:[4711]".
	Inherited map[string]*os.File `json:"-"`
	Lock      *os.File            `json:"-"` // as in Dump
}

// Run restores processes, which are not children of this one.
func (r Restore) Run(p *Program) error {
	arguments := append(p.common("restore", "/proc/self/fd/3", r.Work, r.Connected), "--log-file", "restore.log", "--restore-detached",
		"--ext-unix-sk")
	if r.Job {
		arguments = append(arguments, "--shell-job")
	}
	if r.Consume {
		arguments = append(arguments, "--auto-dedup")
	}
	files := []*os.File{r.Images}
	for name, file := range r.Inherited {
		arguments = append(arguments, "--inherit-fd", fmt.Sprintf("fd[%d]:%s", 3+len(files), name))
		files = append(files, file)
	}
	return p.run(filepath.Join(r.Work, "restore.log"), append(files, locked(r.Lock)...), arguments...)
}

func locked(lock *os.File) []*os.File {
	if lock == nil {
		return nil
	}
	return []*os.File{lock}
}

func (p *Program) run(log string, files []*os.File, arguments ...string) error {
	// Whatever interrupts this command, CRIU comes to its end: if it were killed, it would leave processes stopped.
	c := p.command(context.Background(), arguments...)
	c.Stdin, c.ExtraFiles = os.Stdin, files             // a job takes its terminal from there
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal sends Ctrl-C to all of a group
	output, err := os.Create(log + ".output")           // a pipe would be waited for until all that CRIU has started closes it
	if err != nil {
		return err
	}
	defer output.Close()
	c.Stdout, c.Stderr = output, output
	if err = c.Run(); err == nil {
		return nil
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() < 0 {
		return fmt.Errorf("%s: %w", p.Path, err)
	}
	text, _ := os.ReadFile(output.Name())
	return explain(log, string(text))
}
