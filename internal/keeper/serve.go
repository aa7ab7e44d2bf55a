package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/server"
	"tms/vmm/cuda"
)

// Limits of a keeper that answers.
const (
	patience = 5 * time.Second // with a client that neither ends its line nor reads its reply
	look     = time.Second     // between looks for processes that have ended, and for the socket's file
	idleTime = time.Minute     // after which a keeper that was started at need, and has no set, ends
)

// Serve answers until the context ends, or with idle until there has been no set for a while. Errors:
// server.ErrAnswered; why there can be no socket.
func (k *Keeper) Serve(ctx context.Context, idle bool, log func(string)) error {
	var limit unix.Rlimit // as many descriptors as it may have
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		limit.Cur = limit.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	socket, err := server.Listen(directories, control.Keeper, patience)
	if err != nil {
		return err
	}
	k.recover(ctx, log) // who asks meanwhile waits
	go k.accept(socket.Descriptor)
	ticks := time.NewTicker(look)
	for used := time.Now(); ctx.Err() == nil && !(idle && time.Since(used) > idleTime); {
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
		k.mu.Lock()
		if k.sweep(); len(k.sets) > 0 {
			used = time.Now()
		}
		k.mu.Unlock()
		if !socket.Lost() {
			continue
		}
		again, err := server.Listen(directories, control.Keeper, 0)
		if errors.Is(err, server.ErrAnswered) {
			return err
		} else if err == nil {
			socket = again
			go k.accept(socket.Descriptor)
		}
	}
	return nil // the next keeper replaces the socket's file
}

func (k *Keeper) accept(socket int) {
	for {
		events := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLIN}}
		_, _ = unix.Poll(events, -1)
		client, _, err := unix.Accept4(socket, unix.SOCK_CLOEXEC)
		if err != nil { // no descriptor is left, perhaps
			time.Sleep(10 * time.Millisecond)
			continue
		}
		go func() {
			defer func() { _ = unix.Close(client) }()
			k.attend(client)
		}()
	}
}

// attend answers a client's request.
func (k *Keeper) attend(client int) {
	limit := unix.NsecToTimeval(patience.Nanoseconds())
	for _, which := range []int{unix.SO_RCVTIMEO, unix.SO_SNDTIMEO} {
		_ = unix.SetsockoptTimeval(client, unix.SOL_SOCKET, which, &limit)
	}
	from, err := peerOf(client)
	line, given, failed := server.Receive(client)
	descriptor := -1
	defer func() {
		for _, each := range []int{given, descriptor} {
			if each >= 0 {
				_ = unix.Close(each)
			}
		}
	}()
	if failed != nil {
		return
	}
	var reply control.Reply
	request, failed := control.ParseRequest(line)
	if err = errors.Join(err, failed); err == nil {
		reply, descriptor, err = k.answer(from, request, &given)
	}
	reply.Version, reply.ID, reply.OK = control.Version, request.ID, err == nil
	if err != nil {
		reply.Code, reply.Error = cuda.Code(err), err.Error()
	}
	_ = server.Send(client, reply, descriptor, 0)
}

// peerOf returns who has connected: a process of this user, or root's.
func peerOf(client int) (from owner, err error) {
	peer, err := unix.GetsockoptUcred(client, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return from, err
	}
	if user := unix.Geteuid(); int(peer.Uid) != user && peer.Uid != 0 {
		return from, fmt.Errorf("it is user %d's, and answers no process of user %d", user, peer.Uid)
	}
	if from, err = ownerOf(int(peer.Pid)); err != nil {
		err = fmt.Errorf("the process that asks cannot be seen: %w", err)
	}
	return from, err
}
