package main

/*
#include "shim.h"
#include "region.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/guard"
	"tms/preload/goruntime"
	"tms/vmm/cuda"
)

// The socket by which others steer this process; internal/control has the protocol. One thread serves it, with a
// descriptor table of its own (docs/rationale.md, "Control"). That thread may not open descriptors for the process, as
// a call of the driver does, and no other thread can use its descriptors. server.go has its work, task.go the work that
// other threads do for it.

// listener is what starts the thread, once.
var listener struct {
	sync.Mutex
	asked  chan chan error // the thread waits here until it is to listen; nil: there is none
	listen bool
}

// tmsServe has the process listen, without waiting for that: a failure is a line on stderr.
//
//export tmsServe
func tmsServe() {
	go func() {
		if err := goruntime.Run(serve); err != nil {
			goruntime.Log(fmt.Sprintf("the process cannot be steered from outside: %v", err))
		}
	}()
}

// serve returns when the process listens. Errors: a refusal.
func serve() error {
	listener.Lock()
	defer listener.Unlock()
	if listener.listen {
		return nil
	}
	if listener.asked == nil {
		if !C.threads_reserve_control() {
			return cuda.Refuse(cuda.OperatingSystem, "it needs %d more threads, which the process cannot make; "+
				"raise ulimit -u or the pids limit", C.THREADS_OF_CONTROL)
		}
		asked := make(chan chan error)
		began := make(chan error)
		go controlThread(began, asked)
		if err := <-began; err != nil {
			return err
		}
		listener.asked = asked
	}
	answer := make(chan error)
	listener.asked <- answer
	err := <-answer
	listener.listen = err == nil
	return err
}

// controlThread never returns once it has its own table: the thread would be used for other goroutines.
func controlThread(began chan<- error, asked <-chan chan error) {
	runtime.LockOSThread()
	goruntime.GrowStack()
	if err := ownTable(); err != nil {
		runtime.UnlockOSThread()
		began <- err
		return
	}
	began <- nil
	for answer := range asked {
		s := server{socket: -1}
		err := guard.Call(func() error { return s.listen(clientPatience) })
		answer <- err
		for err == nil {
			err := guard.Call(s.loop)  // it ends by a panic alone
			go goruntime.LogPanic(err) // descriptor 2 is another here
			for _, c := range s.clients {
				c.gone = true
			}
			time.Sleep(backOff)
		}
	}
}

// ownTable gives the calling thread a descriptor table of its own, with nothing in it. In the table of the process
// nothing is closed, also not the locks on its files. (close_range, Linux 5.9; or unshare)
// Errors: a refusal; the thread is as before.
func ownTable() error {
	err := unix.CloseRange(0, ^uint(0), unix.CLOSE_RANGE_UNSHARE)
	if err == nil {
		return nil
	}
	own := "/proc/thread-self/fd"
	descriptors, unlisted := os.ReadDir(own)
	if unlisted != nil {
		return cuda.Refuse(cuda.OperatingSystem, "a thread cannot have descriptors of its own (close_range: %v; %s: "+
			"%v)", err, own, unlisted)
	}
	if refused := unix.Unshare(unix.CLONE_FILES); refused != nil {
		return cuda.Refuse(cuda.OperatingSystem, "a thread cannot have descriptors of its own "+
			"(close_range, of Linux 5.9: %v; unshare: %v)", err, refused)
	}
	if now, err := os.ReadDir(own); err == nil {
		descriptors = now
	}
	for _, entry := range descriptors {
		if descriptor, err := strconv.Atoi(entry.Name()); err == nil {
			_ = unix.Close(descriptor)
		}
	}
	return nil
}

// listen makes the socket, and waits so long for the lock of a directory. What another process of the same number has
// left there is removed. (socket, bind, listen) Errors: a refusal.
func (s *server) listen(patience time.Duration) error {
	user := unix.Geteuid()
	var refused []error
	for _, directory := range control.Directories(C.GoString(C.control_environment.runtime_dir),
		C.GoString(C.control_environment.temporary), user) {
		err := control.MakeDirectory(directory, user)
		if err == nil {
			if err = s.bind(directory, patience); err == nil {
				return nil
			}
		}
		refused = append(refused, err)
	}
	return cuda.Refuse(cuda.OperatingSystem, "%s", strings.ReplaceAll(errors.Join(refused...).Error(), "\n", "; "))
}

// bind makes the socket in a directory. It holds the directory's lock, so that no other process removes the socket.
func (s *server) bind(directory string, patience time.Duration) error {
	lock, err := lockDirectory(directory, patience)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(lock) }()
	path := directory + "/" + control.Name(unix.Getpid())
	address := &unix.SockaddrUnix{Name: control.Address(directory, lock, unix.Getpid())}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("a socket cannot be made: %w", err)
	}
	if err = unix.Bind(socket, address); errors.Is(err, unix.EADDRINUSE) {
		if answered(address) {
			err = errors.New("another process answers there (of the same number, in another container?)")
		} else if err = unix.Unlink(address.Name); err == nil {
			err = unix.Bind(socket, address)
		}
	}
	if err == nil {
		err = unix.Listen(socket, unix.SOMAXCONN)
	}
	var made unix.Stat_t
	if err == nil {
		err = unix.Lstat(address.Name, &made)
	}
	if err != nil {
		_ = unix.Close(socket)
		return fmt.Errorf("%s cannot be bound: %w", path, err)
	}
	s.socket, s.path, s.made, s.looked = socket, path, made, time.Now()
	C.control_bound(words(path), C.dev_t(made.Dev), C.ino_t(made.Ino))
	return nil
}

// lockDirectory opens a directory and has its lock, or gives up. (flock)
func lockDirectory(directory string, patience time.Duration) (int, error) {
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

// answered reports whether a process listens at an address.
func answered(address unix.Sockaddr) bool {
	probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return true
	}
	defer func() { _ = unix.Close(probe) }()
	return !errors.Is(unix.Connect(probe, address), unix.ECONNREFUSED)
}
