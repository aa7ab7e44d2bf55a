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
	look     = time.Second / 2 // between looks for processes that have ended, and for the socket's file
	idleTime = time.Minute     // after which a keeper that was started at need, and has nothing, ends
)

// Serve answers until the context ends, or with idle until there has been nothing for a while. Errors:
// server.ErrAnswered; why there can be no socket.
func (k *Keeper) Serve(ctx context.Context, idle bool) error {
	socket, err := server.Listen(directories, control.Keeper, patience)
	if err != nil {
		return err
	}
	k.recover(ctx) // requests that come meanwhile wait
	for used := time.Now(); ctx.Err() == nil; {
		events := []unix.PollFd{{Fd: int32(socket.Descriptor), Events: unix.POLLIN}}
		_, _ = unix.Poll(events, int(look.Milliseconds()))
		client, _, err := unix.Accept4(socket.Descriptor, unix.SOCK_CLOEXEC)
		if err == nil {
			go k.attend(client)
			continue
		}
		if !errors.Is(err, unix.EAGAIN) { // no descriptor is left, perhaps
			time.Sleep(10 * time.Millisecond)
		}
		k.mu.Lock()
		if k.sweep(); len(k.sets)+len(k.free) > 0 {
			used = time.Now()
		} else if idle && time.Since(used) > idleTime {
			return nil // still locked, so that nobody is told of a set that ends with this process
		}
		k.mu.Unlock()
		if !socket.Lost() {
			continue
		}
		if again, err := server.Listen(directories, control.Keeper, 0); err == nil {
			_ = unix.Close(socket.Descriptor)
			socket = again
		} else if errors.Is(err, server.ErrAnswered) {
			return err
		}
	}
	return unix.Close(socket.Descriptor) // the next keeper replaces the socket's file
}

// attend answers a client's request.
func (k *Keeper) attend(client int) {
	err := server.Limit(client, patience)
	from, hidden := peerOf(client)
	line, given, failed := server.Receive(client)
	descriptor := -1
	defer func() {
		for _, each := range []int{client, given, descriptor} {
			_ = unix.Close(each) // -1: there is none
		}
	}()
	if failed != nil {
		return
	}
	var reply control.Reply
	request, failed := control.ParseRequest(line)
	if err = errors.Join(err, hidden, failed); err == nil {
		reply, descriptor, err = k.answer(from, request, &given)
	}
	reply.Version, reply.ID, reply.OK = control.Version, request.ID, err == nil
	if err != nil {
		reply.Code, reply.Error = cuda.Code(err), err.Error()
	}
	_ = server.Send(client, reply, descriptor, 0)
}

// peerOf returns the process that has connected, which is this user's or root's.
func peerOf(client int) (from owner, err error) {
	peer, err := unix.GetsockoptUcred(client, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return from, err
	}
	if user := unix.Geteuid(); int(peer.Uid) != user && peer.Uid != 0 {
		return from, fmt.Errorf("it is user %d's, and answers no process of user %d", user, peer.Uid)
	}
	if from, err = ownerOf(int(peer.Pid)); err != nil {
		err = fmt.Errorf("the process that asks cannot be seen (in another PID namespace, a container?): %w", err)
	}
	return from, err
}
