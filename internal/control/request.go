package control

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"

	"tms/vmm/stats"
)

// Request is what a client asks: a SteerRequest, a LendRequest or a SetRequest. Each is one flat JSON object.
type Request interface {
	// Operation is the request's Op.
	Operation() string
	// Identity is the request's ID.
	Identity() uint64
	// Sent returns the request as it is sent, with the protocol's version and an ID.
	Sent(id uint64) Request
	// check returns why a process refuses the request, whose fields belong to its operation.
	check() error
}

// Where a move can take contents.
const (
	ToDisk = "disk"
	ToHost = "host"
	// ToMemory is for files that are host memory, of which a snapshot can be made.
	ToMemory = "memory"
)

const maxPath = 4095

// MaxName is the most bytes of a user's name.
const MaxName = 64

// MaxSeconds is the longest that a request may make a process wait: a year.
const MaxSeconds = 365 * 24 * 3600

// DefaultTimeout is the timeout, in seconds, of a pause that names none.
const DefaultTimeout = 30

// SteerRequest asks a process to say what it has, or to change what it does.
type SteerRequest struct {
	Version int     `json:"version"`
	ID      uint64  `json:"id,omitempty"` // comes back in the reply
	Op      string  `json:"op"`
	Tag     *string `json:"tag,omitempty"` // as stats.TagText writes it, or nil for all tags
	// Timeout is how many seconds a pause may wait for the program to come to a point where it can be paused.
	Timeout *float64 `json:"timeout,omitempty"`
	// Idle refuses a pause if a device was given work in the last Idle seconds (code NotReady, or Timeout if a device
	// goes on working). Until the resume such a pause holds up allocations, too.
	Idle  *float64 `json:"idle,omitempty"`
	Force bool     `json:"force,omitempty"` // pause although the program's threads cannot be held during the pause
	// Hold, for a pause: nothing is paused yet, but when the reply comes the program's threads are held up and its
	// devices are idle. That lasts until this client pauses, undoes or goes, whatever others do.
	Hold bool `json:"hold,omitempty"`
	// Lease, for a hold, an align or a park: the process ends that, and the connection, after Lease seconds without a line
	// from this client, for instance because the client is stopped. With 0 it never does.
	Lease float64 `json:"lease,omitempty"`
	// Wait is how many seconds a resume keeps trying while memory is short, an undo waits for memory of other processes
	// (0: as long as usual), or an align waits for its targets. An align answers earlier if they are reached, or if a
	// thread is held back.
	Wait float64 `json:"wait,omitempty"`
	// Turn, for a resume: the client has the lock under which memory is taken in turn. The process then waits for others as
	// briefly as it can, and answers NotReady if it must have what they have not resumed.
	Turn bool `json:"turn,omitempty"`
	// Ahead, for a resume or an undo: other processes give back the memory that it lacks. It takes what comes, and leaves
	// these bytes free on each device, by UUID. It ends when this client says that all has come (Complete), or that it
	// does not (Undo); until then it can give everything back at once.
	Ahead map[string]uint64 `json:"ahead,omitempty"`
	// Parts, for a pause: memory is given back part by part, as contents are saved. After a failure some of it may be
	// paused, which belongs to this client as after a success. For the hold before such a pause: it looks for a moment as
	// the pause would, because no other process is to stop at that moment.
	Parts bool `json:"parts,omitempty"`
	// Driver, for a note.
	Driver *Driver `json:"driver,omitempty"`
	// Everything, for a pause without a tag: the client will take the rest by the driver's checkpoint. The process
	// cannot see that, so it refuses what the driver cannot checkpoint, and remembers that it was asked. For a move:
	// the same client makes it, before the driver's checkpoint. For a resume: the client has undone the checkpoint.
	// While the process remembers, it refuses all other requests that change something.
	Everything bool `json:"everything,omitempty"`
	// To is ToDisk, ToMemory or ToHost for a move. For a pause, ToDisk saves in files the contents that would take new host
	// memory, and ToMemory saves all contents but zeros, except those that go to disk anyway.
	To      string `json:"to,omitempty"`
	Discard bool   `json:"discard,omitempty"` // for a pause: contents are given up, whatever backup they have
	// SaveAll, for a pause: contents without a backup go to host memory, too, because the program is not told of the
	// pause.
	SaveAll bool `json:"save_all,omitempty"`
	// SaveSets, for a pause to ToMemory: the client saves the sets that the process has open, too.
	SaveSets bool `json:"save_sets,omitempty"`
	// Toward, for a pause of everything or with NCCL, says to which devices the process will move.
	Toward stats.Destinations `json:"toward,omitempty"`
	// Yield, for a pause: the process itself undoes it when one of its threads waits, even if this client is gone
	// (ProcessState.Share). For an undo: only what was so paused, and no other client wants paused, is resumed.
	Yield bool `json:"yield,omitempty"`
	// NCCL, for a pause without a tag: what NCCL holds is given back, too. For a hold: the reply names the
	// communicators for which that needs other processes.
	NCCL *NCCL `json:"nccl,omitempty"`
	// Own, for a keep, says that the process itself has asked for the pause: its own resume ends it, too.
	Own bool `json:"own,omitempty"`
	// For a keep or a park, User names the user that keeps the pause, and Lent the user of the memory, both for people.
	User string `json:"user,omitempty"`
	Lent string `json:"lent_to,omitempty"`
	// Until, for a keep, is when the process resumes by itself what this client has paused, in seconds since 1970, or 0
	// for never.
	Until float64 `json:"until,omitempty"`
	// Name, for an advance, is the set's. Back asks for the version before.
	Name string `json:"name,omitempty"`
	Back bool   `json:"back,omitempty"`
	// Sets, for an adopt, has each set that the process had open at its snapshot.
	Sets []Adopted `json:"sets,omitempty"`
	// File, for a record, is an absolute path, as the process sees files, or "" to end the recording.
	File string `json:"file,omitempty"`
	// Targets, for an align, are by the names of sequences. Other sequences are not held back.
	Targets map[string]uint64 `json:"targets,omitempty"`
}

// LendRequest is for memory that one process has and another has mapped.
type LendRequest struct {
	Version int    `json:"version"`
	ID      uint64 `json:"id,omitempty"` // comes back in the reply
	Op      string `json:"op"`
	// Memory says which memory, by the number that its process has given it. Import says for which import of the asking
	// process.
	Memory uint64 `json:"share,omitempty"`
	Import uint64 `json:"import,omitempty"`
}

// SetRequest asks the keeper for a set, or for reserved host memory.
type SetRequest struct {
	Version int    `json:"version"`
	ID      uint64 `json:"id,omitempty"` // comes back in the reply
	Op      string `json:"op"`
	To      string `json:"to,omitempty"`    // for a put: ToDisk or ToHost, where the contents are there
	Chunk   uint64 `json:"share,omitempty"` // for a put: the chunk's number
	// Original, for a seal, is the number of the set of which this one is a copy. That set must have the name until then.
	Original uint64 `json:"-"`
	// Held, for a put, close or give without a set, is the number of a descriptor: a process tells itself to hold it, to
	// drop it, or to give it to the keeper. A client gives a restored process by a put what it awaits.
	Held uint64 `json:"-"`
	// Set is the number of a set, which its maker has drawn. An open has it for a set that may have lost its name. Device
	// is the UUID of its device.
	Set    uint64 `json:"set,omitempty"`
	Name   string `json:"name,omitempty"`
	Device string `json:"device,omitempty"`
	Bytes  uint64 `json:"bytes,omitempty"`  // of a put or take
	Before int    `json:"before,omitempty"` // for a put or seal: how many chunks the set has so far
	Node   *int   `json:"node,omitempty"`   // of an extent, for a put, take or give
	Joins  bool   `json:"joins,omitempty"`  // for a put: it is one more extent of the last chunk
	// Confirm, for a seal, open or take: the client sends an empty line once it has the reply and what came with it.
	// Else the keeper undoes the use that the request has begun: the client has given up, or it has ended.
	Confirm bool `json:"confirm,omitempty"`
	// Tensors, for a seal, is how many the set has.
	Tensors int `json:"tensors,omitempty"`
	// Restored, for a seal, says that the set comes from a snapshot, as this version of its name. It takes the name only
	// if no set of the name is complete, and not if it is Nameless: it had lost the name before.
	Restored uint64 `json:"restored,omitempty"`
	Nameless bool   `json:"nameless,omitempty"`
}

// setLine is a SetRequest as it is sent: the number in "share" is a Chunk, an Original or a Held.
type setLine SetRequest

func (r SetRequest) MarshalJSON() ([]byte, error) {
	r.Chunk = cmp.Or(r.Chunk, r.Original, r.Held)
	return json.Marshal(setLine(r))
}

func (r *SetRequest) UnmarshalJSON(line []byte) error {
	err := json.Unmarshal(line, (*setLine)(r))
	switch {
	case r.Op == Seal:
		r.Original, r.Chunk = r.Chunk, 0
	case r.Set == 0:
		r.Held, r.Chunk = r.Chunk, 0
	}
	return err
}

func (r SteerRequest) Operation() string { return r.Op }
func (r LendRequest) Operation() string  { return r.Op }
func (r SetRequest) Operation() string   { return r.Op }

func (r SteerRequest) Identity() uint64 { return r.ID }
func (r LendRequest) Identity() uint64  { return r.ID }
func (r SetRequest) Identity() uint64   { return r.ID }

func (r SteerRequest) Sent(id uint64) Request {
	r.Version, r.ID = max(1, r.Version), id
	switch {
	case r.Ahead != nil || r.Op == Complete: // an older process would resume at once, or not at all
		r.Version = AheadSince
	case r.Until > 0: // an older process would keep the pause for good
		r.Version = untilSince
	}
	return r
}
func (r LendRequest) Sent(id uint64) Request { r.Version, r.ID = max(1, r.Version), id; return r }
func (r SetRequest) Sent(id uint64) Request {
	r.Version, r.ID = max(1, r.Version), id
	if r.Restored > 0 { // an older keeper would give it the name
		r.Version = restoredSince
	}
	return r
}

// untilSince is the version that has until.
const untilSince = 2

// AheadSince is the version that has ahead and parts.
const AheadSince = 3

// restoredSince is the version that has restored and nameless.
const restoredSince = 4

func (r LendRequest) check() error { return nil }

func (r SteerRequest) check() error {
	switch {
	case r.File != "" && (r.File[0] != '/' || len(r.File) > maxPath || strings.ContainsRune(r.File, 0)):
		return fmt.Errorf("%.100q: a record takes a file by its path from the root", r.File)
	case r.Op == Pause && r.Tag != nil && (r.Everything || r.NCCL != nil):
		return errors.New("only a pause without a tag takes everything or nccl")
	case r.Toward != nil && !r.Everything && r.NCCL == nil:
		return errors.New("only a pause of everything, or with nccl, takes toward")
	case r.Op == Move && r.To == "" || r.To != "" && r.To != ToDisk && r.To != ToMemory && (r.Op == Pause || r.To != ToHost):
		return fmt.Errorf("%q is no place for contents: to is disk, memory or host for a move, and disk or memory for a pause",
			r.To)
	case r.To == ToMemory && r.Toward != nil:
		return errors.New("to excludes toward: contents go to one place")
	case r.Discard && r.SaveAll || r.Yield && r.Everything:
		return errors.New("discard excludes save_all, and yield excludes everything")
	case r.NCCL != nil && len(r.NCCL.Together) > 0 && (r.Hold || r.NCCL.Until <= 0):
		return errors.New("only the pause after a hold takes together, and until says when it ends")
	case r.Hold && (r.Everything || r.Toward != nil):
		return errors.New("a hold comes before a pause, and takes no everything or toward")
	case r.Ahead != nil && (r.Everything || r.Wait > 0 || r.Version < AheadSince):
		return errors.New("ahead excludes everything and wait, and is in requests of version 3")
	case r.Parts && (r.Everything || r.Discard || r.Toward != nil || r.NCCL != nil || r.To == ToMemory):
		return errors.New("parts excludes everything, discard, toward, nccl, and to memory")
	case r.Op == Note && r.Driver == nil:
		return errors.New("a note has the driver's part")
	case r.Until > 0 && (r.Own || r.Version < untilSince):
		return errors.New("until excludes own, and is in requests of version 2")
	case len(r.User) > MaxName || len(r.Lent) > MaxName || strings.ContainsFunc(r.User+r.Lent, unicode.IsControl):
		return fmt.Errorf("user and lent_to are names of at most %d bytes, without control characters", MaxName)
	case r.Until != 0 && !(r.Until > 0 && r.Until < 1e11):
		return fmt.Errorf("until is %g; it is seconds since 1970", r.Until)
	case slices.ContainsFunc(r.Sets, func(a Adopted) bool { return len(a.Was) != 1+len(a.Set.Chunks) }):
		return errors.New("an adopted set has a number more than chunks")
	case r.Targets != nil && len(r.Targets) == 0:
		return errors.New("targets are at least one")
	case r.Tag != nil && (*r.Tag == "" || strings.ContainsRune(*r.Tag, 0)):
		return fmt.Errorf("%q is no tag; leave it out for all", *r.Tag)
	}
	given := map[string]float64{"timeout": r.TimeoutSeconds(), "wait": r.Wait, "lease": r.Lease}
	if r.Idle != nil {
		given["idle"] = *r.Idle
	}
	for name, seconds := range given {
		if math.IsNaN(seconds) || seconds < 0 || seconds > MaxSeconds {
			return fmt.Errorf("%s is %g; it is seconds, from 0 to %d", name, seconds, MaxSeconds)
		}
	}
	return nil
}

func (r SetRequest) check() error {
	if r.To != "" && r.To != ToDisk && r.To != ToHost {
		return fmt.Errorf("%q is no place for contents: to is disk or host", r.To)
	}
	return nil
}

// TimeoutSeconds returns Timeout, or its default.
func (r *SteerRequest) TimeoutSeconds() float64 {
	if r.Timeout == nil {
		return DefaultTimeout
	}
	return *r.Timeout
}

// IdleSeconds returns Idle, or a negative number where there is none.
func (r *SteerRequest) IdleSeconds() float64 {
	if r.Idle == nil {
		return -1
	}
	return *r.Idle
}
