package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
)

// A paused process is found again whatever becomes of its socket's directory, which vanishes when the user's last login
// ends.
func TestSocketGoes(t *testing.T) {
	for what, goes := range map[string]func(t *testing.T, runtime, socket string){
		"with its directory": func(t *testing.T, runtime, _ string) { require.NoError(t, os.RemoveAll(runtime)) },
		"and the directory comes back": func(t *testing.T, runtime, _ string) {
			require.NoError(t, os.RemoveAll(runtime))
			require.NoError(t, os.Mkdir(runtime, 0o700))
		},
		"alone": func(t *testing.T, _, socket string) { require.NoError(t, os.Remove(socket)) },
		"and a file comes in its place": func(t *testing.T, _, socket string) {
			require.NoError(t, os.Remove(socket))
			require.NoError(t, os.WriteFile(socket, nil, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			directory := sockets(t)
			h := controlled(t, reaching(t))
			h.do("work")
			pause := gated(control.Pause, "")
			before := h.dial()
			well(t, before, pause)
			well(t, before, control.SteerRequest{Op: control.Keep})
			for range 2 { // and once more
				goes(t, filepath.Dir(directory), filepath.Join(directory, control.Name(h.pid())))
				h.listens()
			}
			require.Equal(t, bothPaused["weights"], h.paused()["weights"])
			request(t, before, control.SteerRequest{Op: control.Status}) // a connected client stays connected
			well(t, h.dial(), resumeOf(""))
			h.goesOn()
			h.do("calm")
			h.ends()
			require.NoFileExists(t, filepath.Join(directory, control.Name(h.pid())))
		})
	}
}

// A client that comes while there is no socket waits for it.
func TestSocketIsAwaited(t *testing.T) {
	directory := sockets(t)
	h := controlled(t)
	for range 3 {
		require.NoError(t, os.Remove(filepath.Join(directory, control.Name(h.pid()))))
		h.dial().Close()
	}
	h.ends()
}
