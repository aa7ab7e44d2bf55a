package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
)

// listenTCP listens at the address of a flag --listen. An error names the example, an address that would do.
func listenTCP(address, example string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if failed, ok := errors.AsType[*net.OpError](err); ok {
		err = failed.Err // without the address, which comes before
	}
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w; give an address and a free port, such as %s", address, err, example)
	}
	return listener, nil
}

// serveHTTP serves until the context ends, or the listener fails, and then until the requests in progress are answered.
func serveHTTP(ctx context.Context, server *http.Server, listener net.Listener) error {
	answered := make(chan struct{})
	context.AfterFunc(ctx, func() {
		_ = server.Shutdown(context.Background())
		close(answered)
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		_ = server.Shutdown(context.Background())
		return err
	}
	<-answered
	return nil
}
