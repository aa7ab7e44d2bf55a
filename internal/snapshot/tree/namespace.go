package tree

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/machine/process"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// A copy has namespaces of its own for the numbers of its processes and for its mounts, so that its numbers, its shared
// memory and its sockets are not those of another copy. This command itself is the first process there (Init): it mounts
// what the copy has for itself, runs CRIU, and from then on waits for children that have no other parent.

// InitName is the name of a command that is the first process of a copy.
const InitName = "tms-restored"

// self is this program, also where another one has its path since: it speaks with the first process in JSON of its own.
const self = "/proc/self/exe"

// copied is what the first process does.
type copied struct {
	Program criu.Program
	Restore criu.Restore
	Streams map[string]int
	Folder  string // of the snapshot
	Shared  []snapshot.Shared
	Sockets map[string]int // directories of sockets, and the user of each
}

// inNamespace restores processes in a namespace of their own, where others get numbers after last, and returns the numbers
// here of those within. The processes end with this command unless keep is called. fill puts CRIU's files for that
// namespace into their folder.
func inNamespace(c copied, last int, fill func(namespace string) error) (init *os.Process, numbers map[int]int, keep func(), err error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, nil, nil, err
	}
	defer theirs.Close()
	command := exec.Command(self)
	command.Args = []string{InitName, c.Folder, strconv.Itoa(last)}
	command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
	command.ExtraFiles = []*os.File{theirs, c.Restore.Images}
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if err = command.Start(); err != nil {
		_ = ours.Close()
		return nil, nil, nil, fmt.Errorf("a PID namespace cannot be made: %w", err)
	}
	go func() { _ = command.Wait() }()
	_ = theirs.Close()
	var namespace string
	if namespace, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", command.Process.Pid)); err == nil {
		err = fill(strings.Trim(namespace, "pid:[]"))
	}
	if err == nil {
		err = json.NewEncoder(ours).Encode(c)
	}
	if err == nil {
		answer, _ := bufio.NewReader(ours).ReadString('\n')
		switch words, failed := strings.CutPrefix(strings.TrimSpace(answer), "failed: "); {
		case failed:
			err = errors.New(words)
		case answer == "":
			err = errors.New("the first process of the PID namespace has ended")
		}
	}
	if err == nil {
		numbers, err = within(command.Process.Pid)
	}
	if err != nil {
		_ = command.Process.Kill()
		_ = ours.Close()
		return nil, nil, nil, err
	}
	return command.Process, numbers, func() {
		_, _ = ours.WriteString("keep\n")
		_ = ours.Close()
	}, nil
}

// pair returns two ends of a connection.
func pair() (*os.File, *os.File, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(ends[0]), "copy"), os.NewFile(uintptr(ends[1]), "copy"), nil
}

// within returns the numbers here of the processes in the PID namespace of one, by their numbers there.
func within(init int) (map[int]int, error) {
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", init))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	found := map[int]int{}
	for _, entry := range entries {
		here, notOne := strconv.Atoi(entry.Name())
		if notOne != nil {
			continue
		}
		if other, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", here)); other != namespace {
			continue
		}
		if numbers := process.Numbers(here); len(numbers) > 1 {
			there, _ := strconv.Atoi(numbers[len(numbers)-1])
			found[there] = here
		}
	}
	return found, err
}

// Init is what the first process of a copy does. It ends when it has no more children, and returns its exit code.
func Init() int {
	err := leaveNumbers()
	_ = os.WriteFile("/proc/self/comm", []byte(InitName), 0) // it was executed as "exe"
	command, images := os.NewFile(3, "command"), os.NewFile(4, "images")
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	asked := bufio.NewReader(command)
	var c copied
	if err == nil {
		var line []byte
		if line, err = asked.ReadBytes('\n'); err == nil {
			err = json.Unmarshal(line, &c)
		}
	}
	var leave func()
	if err == nil {
		leave, err = c.mount()
	}
	if err == nil {
		c.Restore.Inherited, c.Restore.Images = streams(c.Streams), images
		err = c.Restore.Run(&c.Program)
	}
	_ = images.Close()
	if err != nil {
		fmt.Fprintf(command, "failed: %s\n", strings.ReplaceAll(err.Error(), "\n", "; "))
		if leave != nil {
			leave()
		}
		return 1
	}
	fmt.Fprintln(command, "restored")
	if answer, _ := asked.ReadString('\n'); answer == "" { // the command has ended, and all within end with this process
		leave()
		return 1
	}
	_ = command.Close()
	if null, err := os.OpenFile("/dev/null", os.O_RDWR, 0); err == nil { // others wait for the end of the program's
		for stream := range 3 {
			_ = unix.Dup2(int(null.Fd()), stream)
		}
		_ = null.Close()
	}
	for err = nil; !errors.Is(err, unix.ECHILD); {
		_, err = unix.Wait4(-1, nil, 0, nil)
	}
	leave()
	return 0
}

// leaveNumbers starts this command again, so that its threads have numbers after the one that it was given: the first
// threads of a namespace have the lowest numbers, and so have the processes of a container, which CRIU makes again.
func leaveNumbers() error {
	if len(os.Args) < 3 {
		return nil
	}
	err := writeLast(os.Args[2])
	if err == nil {
		err = unix.Exec(self, os.Args[:2], os.Environ())
	}
	return fmt.Errorf("starting the first process of the PID namespace: %w", err)
}

// writeLast sets the last number of this PID namespace. Its own /proc is there only for that time: that of a container
// may refuse the write, and mount needs the one from outside. (ns_last_pid)
func writeLast(number string) error {
	err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
	if err == nil {
		err = mountProc()
	}
	if err != nil {
		return err
	}
	err = os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(number), 0o600)
	return errors.Join(err, unix.Unmount("/proc", unix.MNT_DETACH))
}

func mountProc() error {
	return unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
}

// mount gives the copy its own /proc, shared memory and directories of sockets. The function that it returns removes
// these directories.
func (c *copied) mount() (leave func(), err error) {
	var folders []func()
	leave = func() {
		for _, remove := range folders {
			remove()
		}
	}
	name := ""
	if numbers, err := os.Readlink("/proc/self"); err == nil { // still the number outside
		name = numbers
	}
	if err = unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return leave, fmt.Errorf("mounting: %w", err)
	}
	for directory, user := range c.Sockets {
		remove, err := ownSockets(directory, name, user)
		if err != nil {
			return leave, err
		}
		folders = append(folders, remove)
	}
	if err = mountProc(); err != nil {
		return leave, fmt.Errorf("mounting /proc: %w", err)
	}
	if err = unix.Mount("tmpfs", sharedMemory, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err == nil {
		err = putShared(c.Folder, c.Shared)
	}
	return leave, err
}

// outsideName is where a copy finds the directory of sockets of the machine.
const outsideName = "outside"

// ownSockets mounts a folder of a directory of sockets over the directory.
func ownSockets(directory, name string, user int) (remove func(), err error) {
	if err = os.MkdirAll(filepath.Dir(directory), 0o777); err == nil {
		if err = os.Mkdir(directory, 0o700); err == nil {
			err = os.Chown(directory, user, -1)
		} else if errors.Is(err, os.ErrExist) {
			err = control.CheckDirectory(directory, user)
		}
	}
	if err != nil {
		return nil, err
	}
	above, err := os.Open(directory)
	if err != nil {
		return nil, err
	}
	for _, other := range control.Namespaces(directory) { // of copies whose first process was killed
		if _, err := os.Stat("/proc/" + strings.TrimPrefix(other, control.Namespace(directory, ""))); errors.Is(err, os.ErrNotExist) {
			_ = os.RemoveAll(other)
		}
	}
	folder := control.Namespace(directory, name)
	// The keeper is that of all copies, and its socket's file another one after each start: so a link leads to the directory.
	if err = os.Mkdir(folder, 0o700); err == nil {
		err = errors.Join(os.Chown(folder, user, -1), os.Mkdir(filepath.Join(folder, outsideName), 0o700),
			unix.Mount(folder, directory, "", unix.MS_BIND, ""))
	}
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", above.Fd()), filepath.Join(directory, outsideName), "", unix.MS_BIND, "")
	}
	if err == nil {
		socket := control.Name(control.Keeper)
		err = os.Symlink(filepath.Join(outsideName, socket), filepath.Join(directory, socket))
	}
	return func() {
		_ = unix.Unmount(filepath.Join(directory, outsideName), unix.MNT_DETACH)
		entries, _ := os.ReadDir(directory)
		for _, entry := range entries {
			_ = os.Remove(filepath.Join(directory, entry.Name()))
		}
		_ = unix.Unlinkat(int(above.Fd()), filepath.Base(folder), unix.AT_REMOVEDIR)
	}, err
}

// numbersOf lists the numbers that processes and threads had when CRIU dumped them.
func numbersOf(images string) (all []int) {
	cores, _ := filepath.Glob(filepath.Join(images, "core-*.img"))
	for _, core := range cores {
		text := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(core), "core-"), ".img")
		if number, err := strconv.Atoi(text); err == nil {
			all = append(all, number)
		}
	}
	return all
}

// apart returns a number after which none of these comes for some hundreds of numbers: the threads of Init and the
// processes that CRIU starts for itself get those.
func apart(numbers []int) int {
	const room = 1000
	last := 0
	for taken := true; taken; {
		taken = false
		for _, number := range numbers {
			if number > last && number <= last+room {
				last, taken = number, true
			}
		}
	}
	return last
}
