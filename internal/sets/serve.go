package sets

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

// Serve answers until the context ends, or with idle until there has been nothing for a while. Without idle it waits for
// the end of a keeper that answers already. Errors: server.ErrAnswered, with idle; why there can be no socket.
func (k *Keeper) Serve(ctx context.Context, idle bool, say func(string)) error {
	socket, err := server.Listen(directories, control.Keeper, patience)
	for told := false; errors.Is(err, server.ErrAnswered) && !idle && ctx.Err() == nil; told = true {
		if !told {
			say("a keeper runs already, perhaps one that a program has started; this one takes over when that ends")
		}
		time.Sleep(look)
		socket, err = server.Listen(directories, control.Keeper, patience)
	}
	if err != nil {
		return err
	}
	k.recover(ctx) // requests wait until this is done
	seats := make(chan struct{}, clientsWithin(k.limit))
	for used := time.Now(); ctx.Err() == nil; {
		events := []unix.PollFd{{Fd: int32(socket.Descriptor), Events: unix.POLLIN}}
		_, _ = unix.Poll(events, int(look.Milliseconds()))
		if events[0].Revents != 0 && k.seat(&socket, seats) {
			continue
		}
		k.mu.Lock()
		if k.sweep(); !k.empty() {
			used = time.Now()
		} else if idle && time.Since(used) > idleTime {
			return nil // still locked, so that no process is told of a set that ends with this one
		}
		empty := k.empty()
		k.mu.Unlock()
		if !socket.Lost() {
			continue
		}
		if again, err := server.Listen(directories, control.Keeper, 0); err == nil {
			_ = unix.Close(socket.Descriptor)
			socket = again
		} else if errors.Is(err, server.ErrAnswered) && empty {
			return err
		}
	}
	return unix.Close(socket.Descriptor) // the next keeper replaces the socket's file
}

// seat answers the next client, and reports whether there was one.
func (k *Keeper) seat(socket *server.Socket, seats chan struct{}) bool {
	select {
	case seats <- struct{}{}:
	case <-time.After(look):
		return false
	}
	client, _, err := unix.Accept4(socket.Descriptor, unix.SOCK_CLOEXEC)
	if err != nil {
		<-seats
		if !errors.Is(err, unix.EAGAIN) { // perhaps no descriptor is left
			time.Sleep(10 * time.Millisecond)
		}
		return false
	}
	go func() {
		defer func() { <-seats }()
		k.attend(client)
	}()
	return true
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
	var settle func(got bool)
	request, id, failed := control.ParseRequest(line)
	if err = errors.Join(err, hidden, failed); err == nil {
		reply, descriptor, settle, err = k.answer(from, request, &given)
	}
	reply.Version, reply.ID, reply.OK, reply.Ignored = control.Version, id, err == nil, control.Unknown(line)
	if err != nil {
		reply.Code, reply.Error = cuda.Code(err), err.Error()
	}
	of, _ := request.(control.SetRequest)
	got := server.Send(client, reply, descriptor, 0) == nil && (!of.Confirm || !reply.OK || server.Confirmed(client))
	if settle != nil {
		k.mu.Lock()
		defer k.mu.Unlock()
		settle(got)
	}
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
