package hermetic

import (
	"bytes"
	"cmp"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// allEnded waits until no process is left that the tests of this process have started, and otherwise returns an error
// that names them. A process is theirs if its environment has their folder, which no other process on the machine
// knows. It kills what it names.
func allEnded(meeting string, patience time.Duration) error {
	var left []int
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if left = startedWith("XDG_RUNTIME_DIR=" + meeting); len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			break
		}
	}
	var names bytes.Buffer
	for _, pid := range left {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		_, _ = fmt.Fprintf(&names, "\n  %d: %s", pid, bytes.ReplaceAll(bytes.TrimRight(command, "\x00"), []byte{0}, []byte{' '}))
		if process, err := os.FindProcess(pid); err == nil {
			_ = process.Kill()
		}
	}
	return fmt.Errorf("processes of these tests still ran %v after the last test:%s", patience, &names)
}

// ofTests is the variable that all processes of these tests have, also those to which a test has given other folders.
const ofTests = "TESTS_OF"

//go:embed leftovers.sh
var leftovers string

// endsWithThis starts a process that waits for the end of this one, and then kills what the tests have left and removes
// their folders. The function that it returns has it do so now.
func endsWithThis(meeting, files string) (end func(), err error) {
	watcher := exec.Command("/bin/sh", "-c", leftovers, "sh", ofTests+"="+meeting, meeting, files)
	watcher.Env = []string{"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/bin:/bin")} // not as one of the tests
	watcher.Dir, watcher.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	open, err := watcher.StdinPipe()
	if err == nil {
		err = watcher.Start()
	}
	return func() { _, _ = open.Close(), watcher.Wait() }, err
}

// startedWith returns the other processes that have this variable.
func startedWith(variable string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		environment, unreadable := os.ReadFile(file)
		if err != nil || unreadable != nil || pid == os.Getpid() {
			continue
		}
		for _, entry := range bytes.Split(environment, []byte{0}) {
			if string(entry) == variable {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids
}
