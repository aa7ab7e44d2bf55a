package api

import (
	"net/http"
	"slices"

	"tms/internal/control"
	"tms/internal/snapshot"
	"tms/internal/snapshot/tree"
)

// snapshots is the answer to a request for a list of them.
type snapshots struct {
	Snapshots []snapshot.Listed `json:"snapshots"`
}

// directory returns where snapshots are. A caller cannot name another directory: the server may run as root, and a
// restore runs what it finds there.
func (s *handler) directory() (string, error) {
	if s.Snapshots == "" {
		return "", &refusal{http.StatusNotFound, "this server has no directory of snapshots: start it with --snapshots DIR"}
	}
	return s.Snapshots, nil
}

func (s *handler) listSnapshots(*call) (any, error) {
	path, err := s.directory()
	if err != nil {
		return nil, err
	}
	directory, err := snapshot.Open(path)
	if err != nil {
		return nil, err
	}
	list, err := directory.List()
	return snapshots{directory.Listed(list)}, err
}

type snapshotRequest struct {
	PID     int      `json:"pid"`
	Stop    bool     `json:"stop"`
	Timeout *float64 `json:"timeout"`
	Force   bool     `json:"force"`
}

func (s *handler) takeSnapshot(c *call, asked snapshotRequest) (any, error) {
	timeout := seconds(asked.Timeout, control.DefaultTimeout)
	if _, err := checked(processes{PIDs: []int{asked.PID}}, nil, map[string]float64{"timeout": timeout}); err != nil {
		return nil, err
	}
	path, err := s.directory()
	if err != nil {
		return nil, err
	}
	return tree.Take{PID: asked.PID, Directory: path, Stop: asked.Stop, User: c.who.user, Lease: tree.DefaultLease,
		Pause: tree.Pausing(timeout, asked.Force)}.Do(c.Context())
}

type restoreRequest struct {
	Name   string   `json:"name"`
	Copies int      `json:"copies"`
	To     []string `json:"to"`
	Wait   float64  `json:"wait"`
}

// restored is the answer to a restore: each copy goes on, or says why not.
type restored struct {
	Restored []*tree.Restored `json:"restored"`
}

func (r *restored) status() int {
	if slices.ContainsFunc(r.Restored, func(one *tree.Restored) bool { return one.Error != "" }) {
		return http.StatusConflict
	}
	return http.StatusOK
}

func (s *handler) restore(c *call, asked restoreRequest) (any, error) {
	if err := times(map[string]float64{"wait": asked.Wait}); err != nil {
		return nil, err
	}
	if asked.Copies < 0 {
		return nil, badRequest("copies is %d; it is a number of copies, or 0 for the program itself", asked.Copies)
	}
	path, err := s.directory()
	if err != nil {
		return nil, err
	}
	all, err := tree.Restore{Directory: path, Name: asked.Name, Wait: control.Seconds(asked.Wait), Copies: asked.Copies,
		To: asked.To}.Do(c.Context())
	if err != nil {
		return nil, err
	}
	return &restored{all}, nil
}
