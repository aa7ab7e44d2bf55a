package criu

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Restores refuses a snapshot that a later CRIU has written.
func (p *Program) Restores(written string) error {
	if earlier(p.Version, written) {
		return fmt.Errorf("CRIU %s has written the snapshot, and %s, which is %s, may not read it: install that version, or "+
			"name it by %s", written, p.Path, p.Version, Setting)
	}
	return nil
}

// Able finds CRIU, and returns why it cannot dump and restore programs here, and what to do.
func Able(ctx context.Context) (p *Program, do string, lacks error) {
	p, err := Find(ctx)
	if err != nil {
		return nil, "install criu 4.2 or later; scripts/test.sh of the sources fetches it (docs/snapshot.md)", err
	}
	if missing := missingCapabilities(); len(missing) > 0 {
		return p, "run tms snapshot and tms restore as root; in a container, with these capabilities added",
			fmt.Errorf("CRIU needs privileges that this command lacks: %s", strings.Join(missing, ", "))
	}
	if _, _, failed := unix.Syscall6(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), 0, 0, 0, 0); failed != 0 {
		return p, "use a kernel with CONFIG_KCMP or CONFIG_CHECKPOINT_RESTORE, and a seccomp profile that allows kcmp",
			fmt.Errorf("the kernel does not compare processes (kcmp: %w)", failed)
	}
	if text, err := p.command(ctx, "check").CombinedOutput(); err != nil {
		lines := errorsOf(string(text))
		if len(lines) == 0 {
			lines = []string{strings.TrimSpace(string(text))}
		}
		return p, "use a kernel with what criu check names, such as CONFIG_CHECKPOINT_RESTORE",
			fmt.Errorf("criu check: %s", strings.Join(lines, "; "))
	}
	return p, "", nil
}

// AnyUser reports whether programs of other users can be dumped, too.
func AnyUser() bool { return has(unix.CAP_SYS_RESOURCE) }

// KeepsConnections reports whether TCP connections can be dumped and made again. A capability does not say so: in a user
// namespace it may be there, and not hold for the network. (TCP_REPAIR)
func KeepsConnections() bool {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(socket)
	return unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) == nil
}

// has reports whether this process has a capability.
func has(number int) bool {
	status, _ := os.ReadFile("/proc/self/status")
	_, line, _ := strings.Cut(string(status), "\nCapEff:\t")
	digits, _, _ := strings.Cut(line, "\n")
	set, _ := strconv.ParseUint(digits, 16, 64)
	return set&(1<<number) != 0
}

// missingCapabilities lists what a dump and a restore need, and this process lacks.
func missingCapabilities() (missing []string) {
	for _, one := range []struct {
		number int
		name   string
	}{
		{unix.CAP_CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE"}, {unix.CAP_SETPCAP, "CAP_SETPCAP"},
		{unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}, {unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE"},
	} {
		if !has(one.number) {
			missing = append(missing, one.name)
		}
	}
	return missing
}
