package main

import (
	"errors"
	"math/rand/v2"

	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/server"
)

// descriptors is a store.Descriptors: the thread of the process's own socket keeps them (server/hold.go).
type descriptors struct{ process *Process }

func (d descriptors) Keep(descriptor int) (number uint64, err error) {
	if err = d.process.socket.Hold(); err != nil {
		return 0, err
	}
	number = max(1, rand.Uint64())
	put := control.SetRequest{Op: control.Put, Number: number}
	return number, server.AskSelf(d.process.Directories, put, descriptor)
}

func (d descriptors) Copy(number uint64) (descriptor int, err error) {
	lend := control.LendRequest{Op: control.Lend, Memory: number}
	reply, descriptor, err := server.Ask(d.process.Directories, unix.Getpid(), lend, -1)
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	return descriptor, err
}

func (d descriptors) Close(descriptor int) { server.CloseOwn(descriptor) }

func (d descriptors) Drop(number uint64) error {
	return server.AskSelf(d.process.Directories, control.SetRequest{Op: control.Close, Number: number}, -1)
}
