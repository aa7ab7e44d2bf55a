package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxAddress is the longest that the path of a socket can be. (sockaddr_un)
const maxAddress = 107

// Directories returns the directories for the socket of a user's process, which takes the first that it can use.
// runtime is XDG_RUNTIME_DIR, temporary is TMPDIR, either may be "".
func Directories(runtime, temporary string, uid int) (found []string) {
	if filepath.IsAbs(runtime) {
		found = append(found, filepath.Join(runtime, "tms"))
	}
	if !filepath.IsAbs(temporary) {
		temporary = "/tmp"
	}
	return append(found, filepath.Join(temporary, fmt.Sprint("tms-", uid)))
}

// AllDirectories returns the directories in which a user's processes may have their sockets, even with other variables
// than these. A user who has set both to places that are no default wants to be apart, and looks nowhere else.
func AllDirectories(runtime, temporary string, uid int) (found []string) {
	own := Directories(runtime, temporary, uid)
	if len(own) == 2 && !strings.HasPrefix(runtime, "/run/user/") && filepath.IsAbs(temporary) {
		return own
	}
	for _, directory := range append(own, Directories(fmt.Sprint("/run/user/", uid), "/tmp", uid)...) {
		if !slices.Contains(found, directory) {
			found = append(found, directory)
		}
	}
	return found
}

// OthersDirectories returns the directories of other users' processes that there are, and whose each is.
func OthersDirectories(runtime, temporary string, uid int) map[string]int {
	found := map[string]int{}
	for _, pattern := range AllDirectories("", temporary, uid) {
		base := strings.TrimSuffix(pattern, "/tms")
		entries, _ := os.ReadDir(filepath.Dir(base))
		for _, entry := range entries {
			user, err := strconv.Atoi(strings.TrimPrefix(entry.Name(), "tms-"))
			if err != nil || user == uid {
				continue
			}
			for _, directory := range AllDirectories(runtime, temporary, user) {
				if CheckDirectory(directory, user) == nil {
					found[directory] = user
				}
			}
		}
	}
	return found
}

// CommonDirectory returns a directory that all of a user's processes have in common, also those with other variables,
// but those of a user who wants to be apart. (mkdir)
func CommonDirectory(runtime, temporary string, uid int) (string, error) {
	all := AllDirectories(runtime, temporary, uid)
	directory := all[len(all)-1]
	return directory, MakeDirectory(directory, uid)
}

// MakeDirectory makes a directory for sockets of the user, or says why it cannot be one. (mkdir)
func MakeDirectory(directory string, uid int) error {
	parent := filepath.Dir(directory)
	if filepath.Base(directory) == "tms" { // of XDG_RUNTIME_DIR, which sudo and su may hand to another user
		var above unix.Stat_t
		if err := unix.Stat(parent, &above); err != nil {
			return fmt.Errorf("%s: %w", parent, err)
		}
		if above.Uid != uint32(uid) {
			return fmt.Errorf("%s belongs to user %d, not to %d", parent, above.Uid, uid)
		}
	}
	if err := unix.Mkdir(directory, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s cannot be made: %w", directory, err)
	}
	return CheckDirectory(directory, uid)
}

// CheckDirectory says why a directory cannot hold sockets of the user: it is not the user's alone. (lstat) Errors:
// unix.ENOENT, wrapped, if it does not exist; ErrAnothers; ErrOpen.
func CheckDirectory(directory string, uid int) error {
	var found unix.Stat_t
	if err := unix.Lstat(directory, &found); err != nil {
		return fmt.Errorf("%s: %w", directory, err)
	}
	switch {
	case found.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory; remove it", directory)
	case found.Uid != uint32(uid):
		return fmt.Errorf("%s belongs to user %d, not to %d: %w", directory, found.Uid, uid, ErrAnothers)
	case found.Mode&0o077 != 0:
		return fmt.Errorf("%s %w (mode %#o); chmod 700 it", directory, ErrOpen, found.Mode&0o777)
	}
	return nil
}

// ErrAnothers: a directory belongs to another user, so it has never had a socket of this user's processes. In a user
// namespace, the directory of the machine's root does.
var ErrAnothers = errors.New("sockets in it could be anybody's")

// ErrOpen: a directory of this user is not used until its mode is changed.
var ErrOpen = errors.New("can be entered by other users")

// LockDirectory opens a directory and takes its lock, or gives up after patience. A process that makes or removes a
// socket there holds the lock. (flock)
func LockDirectory(directory string, patience time.Duration) (int, error) {
	descriptor, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("%s cannot be opened: %w", directory, err)
	}
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err = unix.Flock(descriptor, unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return descriptor, nil
		}
		if time.Since(start) >= patience {
			_ = unix.Close(descriptor)
			return -1, fmt.Errorf("%s cannot be locked: %w", directory, err)
		}
	}
}

// Answered reports whether a process listens at an address. A copy's link to the keeper may lead nowhere (tms restore).
func Answered(address string) bool {
	probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Close(probe) }()
	err = unix.Connect(probe, &unix.SockaddrUnix{Name: address})
	return !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.ENOENT)
}

// Namespaces lists the folders of a directory that are the directory of sockets in a PID namespace below this one:
// what tms restore starts there finds the folder in the directory's place.
func Namespaces(directory string) []string {
	found, _ := filepath.Glob(Namespace(directory, "*"))
	return found
}

// Namespace returns the path of such a folder.
func Namespace(directory, name string) string { return filepath.Join(directory, "namespace-"+name) }

// Keeper stands for the keeper (package sets) in place of a process's number: it is found by its socket's name.
const Keeper = -1

// Name returns the name of a process's socket in its directory.
func Name(pid int) string {
	if pid == Keeper {
		return "keeper.sock"
	}
	return strconv.Itoa(pid) + ".sock"
}

// PID returns the process whose socket has this name, and reports whether it is the name of a socket.
func PID(name string) (int, bool) {
	number, ok := strings.CutSuffix(name, ".sock")
	pid, err := strconv.Atoi(number)
	return pid, ok && err == nil && pid > 0 && Name(pid) == name
}

// LostKeeper is lost for the keeper that had its socket in a directory.
func LostKeeper(directory string) bool {
	return lost(func(path string) bool { return path == filepath.Join(directory, Name(Keeper)) })
}

// lost reports whether a process listens on a socket that is no longer in its directory, or is about to listen, as far
// as the caller's network namespace shows that. Such a process can be found soon after Look. (/proc/net/unix)
func lost(ours func(path string) bool) bool {
	const flags, state, listens, unconnected = 3, 5, "00010000", "01" // __SO_ACCEPTCON, SS_UNCONNECTED
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(sockets)) {
		about, path, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " /")
		fields := strings.Fields(about)
		if !ours("/"+path) || len(fields) <= state || fields[state] != unconnected {
			continue
		}
		var found unix.Stat_t
		if fields[flags] != listens || unix.Lstat("/"+path, &found) != nil {
			return true
		}
	}
	return false
}

// Search connects to a process, and waits for one that is lost to replace its socket. Errors: the last of connect.
func Search[C any](pid int, connect func() (C, error)) (C, error) {
	connection, err := connect()
	until := time.Now().Add(3 * Look)
	for missed := 0; err != nil && missed < 2 && time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if missed++; lost(func(path string) bool { return filepath.Base(path) == Name(pid) }) {
			missed = 0
		}
		connection, err = connect() // it may be there by now
	}
	return connection, err
}

// Address returns the path by which to bind or connect a process's socket: a path that is too long goes through the
// directory's descriptor, in the calling thread's table.
func Address(directory string, descriptor, pid int) string {
	if path := filepath.Join(directory, Name(pid)); len(path) <= maxAddress {
		return path
	}
	return AddressIn(descriptor, pid)
}

// AddressIn returns the address through the directory's descriptor, whatever the directory's name is by now.
func AddressIn(descriptor, pid int) string {
	return fmt.Sprintf("/proc/thread-self/fd/%d/%s", descriptor, Name(pid))
}
