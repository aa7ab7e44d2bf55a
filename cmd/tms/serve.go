package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"tms/internal/api"
	"tms/internal/control"
	"tms/internal/sets"
	"tms/internal/snapshot"
)

// tokenVariable has the tokens where no file does.
const tokenVariable = "TMS_SERVE_TOKEN"

func serveCommand() *cobra.Command {
	var s serveFlags
	command := &cobra.Command{
		Use:   "serve",
		Short: "Serve these commands to controllers over HTTP",
		Long: `Serves ps, pause, lend, resume, swap, move and kept as JSON over HTTP, and with
--snapshots snapshot and restore, until Ctrl-C: at a Unix socket to this user
and root, or over TCP to callers with a bearer token (--token-file,
TMS_SERVE_TOKEN). A change leaves a line on stderr.`,
		Example: `  tms serve
  curl --unix-socket $XDG_RUNTIME_DIR/tms/serve.sock http://tms/openapi.json
  tms serve --listen 127.0.0.1:9401 --token-file token`,
		Args:              noArguments,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(command *cobra.Command, _ []string) error { return s.run(command) },
	}
	flags := command.Flags()
	flags.StringVar(&s.listen, "listen", "", "unix:PATH or HOST:PORT, an `ADDRESS` (default: a socket)")
	flags.StringVar(&s.tokenFile, "token-file", "", "`FILE` with a line for each token: NAME TOKEN")
	flags.StringVar(&s.snapshots, "snapshots", "", "take snapshots into this `DIR`, and restore them")
	flags.BoolVar(&s.beyondLoopback, "beyond-loopback", false, "other machines may connect; nothing is encrypted")
	completes(command, "listen", "unix:")
	return command
}

// serveFlags are the flags of tms serve.
type serveFlags struct {
	listen, tokenFile string
	snapshots         string
	beyondLoopback    bool
}

func (s *serveFlags) run(command *cobra.Command) error {
	ctx, again := interruptible()
	context.AfterFunc(ctx, again)           // a second signal ends the command
	_ = os.Unsetenv("CUDA_VISIBLE_DEVICES") // for moves, as in moveCommand
	tokens, err := s.tokens()
	if err != nil {
		return err
	}
	if s.snapshots != "" {
		if _, err := snapshot.Create(s.snapshots); err != nil {
			return fmt.Errorf("--snapshots: %w", err)
		}
	}
	listener, where, err := s.listener(tokens != nil)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintln(command.OutOrStdout(), where); err != nil {
		return err
	}
	return serveHTTP(ctx, api.NewServer(api.Options{Context: ctx, Version: version, Tokens: tokens, Sets: &keptSets{},
		Snapshots: s.snapshots, Audit: command.ErrOrStderr()}), listener)
}

// unix returns the path of a socket, and reports whether the server has one.
func (s *serveFlags) unix() (path string, is bool) {
	path, is = strings.CutPrefix(s.listen, "unix:")
	return path, is || s.listen == ""
}

// tokens returns the tokens of callers over TCP, or nil for a Unix socket.
func (s *serveFlags) tokens() (tokens api.Tokens, err error) {
	variable := os.Getenv(tokenVariable)
	_ = os.Unsetenv(tokenVariable) // the keeper that this command starts does not need it
	_, unix := s.unix()
	switch {
	case unix && s.tokenFile != "":
		return nil, errors.New("a Unix socket takes no tokens, because the kernel says who connects: leave --token-file out")
	case unix:
		return nil, nil
	case s.tokenFile != "":
		if tokens, err = api.ReadTokens(s.tokenFile); err != nil {
			return nil, fmt.Errorf("--token-file: %w", err)
		}
		return tokens, nil
	case variable == "":
		return nil, fmt.Errorf("--listen %s: over TCP callers need a token: give --token-file or %s (openssl rand -hex 32 "+
			"makes one), or listen at unix:PATH", s.listen, tokenVariable)
	}
	if tokens, err = api.ParseTokens(variable); err != nil {
		return nil, fmt.Errorf("%s: %w", tokenVariable, err)
	}
	return tokens, nil
}

// listener returns what to listen on, and the words for where that is.
func (s *serveFlags) listener(tcp bool) (listener net.Listener, where string, err error) {
	const example = "127.0.0.1:9401"
	if !tcp {
		path, _ := s.unix()
		if s.listen == "" {
			path, err = api.DefaultSocket()
		}
		if err == nil && path == "" {
			err = errors.New("the path is empty")
		}
		if err == nil {
			listener, err = api.ListenUnix(path)
		}
		if err != nil {
			return nil, "", fmt.Errorf("--listen unix:%s: %w", path, err)
		}
		return listener, "unix:" + path, nil
	}
	if listener, err = listenTCP(s.listen, example); err != nil {
		return nil, "", err
	}
	if at, ok := listener.Addr().(*net.TCPAddr); ok && !at.IP.IsLoopback() && !s.beyondLoopback {
		_ = listener.Close()
		return nil, "", fmt.Errorf("--listen %s can be reached from other machines, and nothing is encrypted: give %s, or "+
			"--beyond-loopback", s.listen, example)
	}
	return api.Limited(listener), "http://" + listener.Addr().String(), nil
}

// keptSets is what tms kept does. Sets move one after another, because a process, and not a thread, has a set's lock.
type keptSets struct{ moving sync.Mutex }

func (*keptSets) List() ([]control.KeptSet, error) {
	return askKeeper(control.SetRequest{Op: control.List})
}

func (*keptSets) Drop(name string) error {
	_, err := askKeeper(control.SetRequest{Op: control.Drop, Name: name})
	return err
}

func (*keptSets) Advance(ctx context.Context, name string, back bool, within time.Duration) ([]sets.Follower, error) {
	if err := startKeeper(); err != nil {
		return nil, err
	}
	return sets.Advance(ctx, name, back, within)
}

func (k *keptSets) Move(name, to string) error {
	k.moving.Lock()
	defer k.moving.Unlock()
	_, err := moveSet(name, to)
	return err
}
