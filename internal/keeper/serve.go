package keeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// Limits of a keeper that answers.
const (
	patience = 5 * time.Second // with a client that neither ends its line nor reads its reply
	look     = time.Second     // between looks for processes that have ended, and for the socket's file
	idleTime = time.Minute     // after which a keeper that was started at need, and has no set, ends
)

// ErrRunning: another keeper answers already.
var ErrRunning = errors.New("another keeper runs already")

// place is a socket in its directory.
type place struct {
	listener *net.UnixListener
	path     string
	made     os.FileInfo
}

// Serve answers until the context ends, or with idle until there has been no set for a while. Errors: ErrRunning; why
// there can be no socket.
func (k *Keeper) Serve(ctx context.Context, idle bool, log func(string)) error {
	_ = raiseLimit()
	at, err := listen()
	if err != nil {
		return err
	}
	k.recover(ctx, log) // whoever asks meanwhile waits to be accepted
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	go k.accept(at.listener)
	for used := time.Now(); ; {
		select {
		case <-ctx.Done():
			at.remove()
			return nil
		case <-ticks.C:
		}
		k.mu.Lock()
		if k.sweep(); len(k.sets) > 0 {
			used = time.Now()
		}
		k.mu.Unlock()
		if idle && time.Since(used) > idleTime {
			at.remove()
			return nil
		}
		found, err := os.Lstat(at.path)
		if err == nil && os.SameFile(found, at.made) {
			continue
		}
		again, err := listen() // $XDG_RUNTIME_DIR is removed with the user's last login
		if errors.Is(err, ErrRunning) {
			return err
		} else if err == nil {
			_ = at.listener.Close()
			at = again
			go k.accept(at.listener)
		}
	}
}

// raiseLimit lets the process have as many descriptors as it may.
func raiseLimit() error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur = limit.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
}

// listen makes the socket in the first directory that can have it.
func listen() (at place, err error) {
	user := os.Geteuid()
	for _, directory := range control.Directories(os.Getenv("XDG_RUNTIME_DIR"), os.Getenv("TMPDIR"), user) {
		failed := control.MakeDirectory(directory, user)
		if failed == nil {
			at, failed = bind(directory)
		}
		if failed == nil || errors.Is(failed, ErrRunning) {
			return at, failed
		}
		err = errors.Join(err, failed)
	}
	return at, err
}

// bind makes the socket under the directory's lock, in place of one that nobody answers.
func bind(directory string) (at place, err error) {
	lock, err := unix.Open(directory, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return at, err
	}
	defer func() { _ = unix.Close(lock) }()
	if err = unix.Flock(lock, unix.LOCK_EX); err != nil {
		return at, err
	}
	at.path = filepath.Join(directory, control.Name(control.Keeper))
	address := &net.UnixAddr{Name: control.Address(directory, lock, control.Keeper), Net: "unix"}
	if probe, failed := net.DialUnix("unix", nil, address); failed == nil {
		_ = probe.Close()
		return at, ErrRunning
	} else if errors.Is(failed, unix.ECONNREFUSED) {
		_ = os.Remove(at.path)
	}
	if at.listener, err = net.ListenUnix("unix", address); err == nil {
		at.listener.SetUnlinkOnClose(false)
		at.made, err = os.Lstat(at.path)
	}
	return at, err
}

func (p place) remove() {
	_ = p.listener.Close()
	if found, err := os.Lstat(p.path); err == nil && os.SameFile(found, p.made) {
		_ = os.Remove(p.path)
	}
}

func (k *Keeper) accept(listener *net.UnixListener) {
	for {
		connection, err := listener.AcceptUnix()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // no descriptor is left, perhaps
			time.Sleep(100 * time.Millisecond)
		default:
			go k.attend(connection)
		}
	}
}

// attend answers one client until it goes.
func (k *Keeper) attend(connection *net.UnixConn) {
	defer func() { _ = connection.Close() }()
	from, err := peerOf(connection)
	for c := (lines{from: connection, descriptor: -1}); ; {
		line, failed := c.next()
		if failed != nil {
			c.drop()
			return
		}
		var request control.Request
		var reply control.Reply
		descriptor := -1
		failed = err
		if failed == nil {
			request, failed = control.ParseRequest(line)
		}
		if failed == nil {
			reply, descriptor, failed = k.answer(from, request, &c.descriptor)
		}
		c.drop()
		reply.Version, reply.ID, reply.OK = control.Version, request.ID, failed == nil
		if failed != nil {
			reply.Code, reply.Error = cuda.Code(failed), failed.Error()
		}
		if send(connection, reply, descriptor) != nil {
			return
		}
	}
}

// peerOf returns who has connected: a process of this user, or root's.
func peerOf(connection *net.UnixConn) (from owner, err error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return from, err
	}
	var peer *unix.Ucred
	var failed error
	if err = raw.Control(func(descriptor uintptr) {
		peer, failed = unix.GetsockoptUcred(int(descriptor), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return from, errors.Join(err, failed)
	}
	if int(peer.Uid) != os.Geteuid() && peer.Uid != 0 {
		return from, fmt.Errorf("the keeper is user %d's, and answers no process of user %d", os.Geteuid(), peer.Uid)
	}
	if from, err = ownerOf(int(peer.Pid)); err != nil {
		err = fmt.Errorf("the process that asks cannot be seen: %w", err)
	}
	return from, err
}

// lines reads lines, and the descriptors that come with them.
type lines struct {
	from       *net.UnixConn
	rest       []byte
	descriptor int // the last that came; -1: none
}

func (c *lines) next() ([]byte, error) {
	buffer, rights := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	for {
		if line, rest, whole := bytes.Cut(c.rest, []byte{'\n'}); whole {
			c.rest = rest
			return line, nil
		}
		if len(c.rest) > control.MaxLine {
			return nil, errors.New("the line is too long")
		}
		limit := time.Time{}
		if len(c.rest) > 0 {
			limit = time.Now().Add(patience)
		}
		_ = c.from.SetReadDeadline(limit)
		n, m, _, _, err := c.from.ReadMsgUnix(buffer, rights)
		if err != nil || n == 0 {
			return nil, errors.Join(err, io.EOF)
		}
		c.take(rights[:m])
		c.rest = append(c.rest, buffer[:n]...)
	}
}

func (c *lines) take(rights []byte) {
	messages, _ := unix.ParseSocketControlMessage(rights)
	for _, message := range messages {
		descriptors, _ := unix.ParseUnixRights(&message)
		for _, descriptor := range descriptors {
			c.drop()
			c.descriptor = descriptor
		}
	}
}

func (c *lines) drop() {
	if c.descriptor >= 0 {
		_ = unix.Close(c.descriptor)
		c.descriptor = -1
	}
}

// send answers, and closes the descriptor that goes with the answer.
func send(connection *net.UnixConn, reply control.Reply, descriptor int) error {
	var rights []byte
	if descriptor >= 0 {
		rights = unix.UnixRights(descriptor)
		defer func() { _ = unix.Close(descriptor) }()
	}
	line := control.Line(reply)
	_ = connection.SetWriteDeadline(time.Now().Add(patience))
	n, _, err := connection.WriteMsgUnix(line, rights, nil)
	if err == nil && n < len(line) {
		_, err = connection.Write(line[n:])
	}
	return err
}
