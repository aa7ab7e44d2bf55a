package sets

import (
	"context"
	"errors"
	"slices"
	"time"

	"tms/internal/control"
	"tms/internal/control/client"
)

// Follower is a process that has a version of a set, and what became of an advance.
type Follower struct {
	PID     int    `json:"pid"`
	Version uint64 `json:"version"` // that it has now, or 0 if it does not say
	Error   string `json:"error,omitempty"`
}

// answerTime is how long a process may take to answer beyond the time that it waits for its steps.
const answerTime = 30 * time.Second

// Advance has each process that follows a set go on to the newest version between two of its steps, or with back to the
// version before. Each moves, or keeps what it has, whatever becomes of the others. Errors: the keeper's; errors of
// processes are in the list.
func Advance(ctx context.Context, name string, back bool, within time.Duration) (followers []Follower, err error) {
	reply, _, err := Ask(control.SetRequest{Op: control.List}, -1)
	if err != nil {
		return nil, err
	}
	var users []int
	for _, s := range reply.Sets {
		if s.Name == name {
			users = append(users, s.Users...)
		}
	}
	slices.Sort(users)
	for _, pid := range slices.Compact(users) {
		one := Follower{PID: pid}
		if err := one.advance(ctx, name, back, within); err != nil {
			one.Error = err.Error()
		}
		if one.Version > 0 || one.Error != "" {
			followers = append(followers, one)
		}
	}
	return followers, nil
}

// advance asks one process, unless it has the set without following it.
func (f *Follower) advance(ctx context.Context, name string, back bool, within time.Duration) error {
	connection, err := client.Dial(f.PID)
	if err != nil {
		return err
	}
	defer connection.Close()
	state, err := connection.Status(ctx, answerTime)
	if err != nil {
		return err
	}
	follows := func(s control.KeptSet) bool { return s.Name == name && s.Follows }
	if !slices.ContainsFunc(state.Kept, follows) {
		return nil
	}
	seconds := within.Seconds()
	limited, end := context.WithTimeout(ctx, within+answerTime)
	defer end()
	reply, err := connection.Do(limited, control.SteerRequest{Op: control.Advance, Name: name, Back: back,
		Timeout: &seconds})
	if err == nil && !reply.OK {
		err = errors.New(reply.Error)
	}
	for _, s := range reply.Sets {
		f.Version = s.Version
	}
	return err
}
