package main

import (
	"context"
	"os/signal"
	"syscall"
)

// interruptible returns a context that ends at the first SIGINT, SIGTERM or SIGHUP. Only again gives the signals their
// default action back: one that comes after the last step must not end a command that has done its work.
func interruptible() (ctx context.Context, again func()) {
	return signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
}
