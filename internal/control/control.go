// Package control is the protocol between a process that can be steered from outside and its clients, over a
// Unix socket: a line of JSON for each request, and one for each reply. Package server answers and package client asks.
// Nothing in this package keeps a descriptor but LockDirectory, and only that and Search wait.
//
// A client has at most one request in progress that changes something, and may ask for a status during that time.
// Requests that change something are carried out one after another, whichever client they come from. What a client has
// paused is resumed when its connection ends, unless it or another client has asked to keep it; a request that has not
// begun is then withdrawn (package rights says which client is responsible for what). A client that shuts down its side
// of the connection for writing still gets the replies that are due.
package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"tms/vmm/stats"
)

// Version is the protocol's version. Each new field or operation raises it: a process refuses what it does not
// understand, and does not ignore it.
const Version = 1

// Limits of a process that answers.
const (
	MaxLine    = 64 << 10 // bytes of a request
	MaxClients = 16       // the process refuses more
)

// Look is how often a process checks that its socket is still in its directory, and makes a new one if it is not.
const Look = 2 * time.Second

// The operations.
const (
	Status = "status" // what the process has, and does
	Pause  = "pause"  // gives the memory of a tag, or of all, back to the device
	Resume = "resume" // takes the memory again
	Keep   = "keep"   // what this client has paused stays paused when it goes
	Undo   = "undo"   // resumes what this client has paused and not kept, unless another has too; and ends its hold
	Move   = "move"   // moves the contents of what is paused from host memory to disk, or back
	// Note gives the process what a client of a pause of everything knows of the driver's part, for later clients.
	Note = "note"
	// Between processes of which one has the other's memory mapped; see vmm.Processes. None of these waits for a pause.
	Lend     = "lend"     // answers with the descriptor of memory (SCM_RIGHTS)
	Returned = "returned" // that is no longer mapped
	Hand     = "hand"     // from a process to itself: that descriptor, from the thread that can make it
	Record   = "record"   // records allocations and pauses to a file, until the client asks without one, or goes
	// Align holds threads back before they begin more NCCL collectives than the targets say, or without targets more
	// than they have begun by now, until this client keeps, undoes or goes. It tells how far the process has come. Only
	// one client at a time can align.
	Align = "align"
)

// What the keeper is asked (package sets), beside Lend. By put and close a process also tells itself which
// descriptors to keep, for a lend to the next keeper.
const (
	Put = "put" // gives a set, which this process makes, one more chunk: its descriptor comes with the request
	// Seal completes the set: the descriptor of its manifest comes with the request. Share is the set that this one is a
	// copy of, if any, which must have the name until then.
	Seal  = "seal"
	Open  = "open"  // answers with a set and the descriptor of its manifest, and counts this process as a user
	Close = "close" // ends an open, or gives up a set that is not complete
	List  = "list"  // answers with all sets
	Drop  = "drop"  // takes a set's name away; its memory goes when no process uses it
	// Extents of reserved host memory (cuda.HostExtent) go from process to process: Take answers with one of a NUMA
	// node, which is the asker's, and with Bytes 0 says only how much is free. Give gives one.
	Take = "take"
	Give = "give"
)

// ofSets are the fields of requests to the keeper.
const ofSets = "share import set name device bytes before tensors node confirm"

// takes has the fields that each operation takes, by their names in JSON.
var takes = map[string]string{
	Status: "", Keep: "", Hand: "", Undo: "wait yield", Note: "driver", Resume: "tag wait everything turn",
	Pause: "tag timeout idle force hold lease everything to discard save_all toward yield nccl",
	Move:  "tag everything to", Record: "file", Align: "lease wait targets", Lend: "share import",
	Returned: "share import", Put: ofSets + " to joins", Seal: ofSets, Open: ofSets, Close: ofSets, List: ofSets,
	Drop: ofSets, Take: ofSets, Give: ofSets,
}

// OfKeeper reports whether only the keeper answers a request.
func (r *Request) OfKeeper() bool { return strings.HasPrefix(takes[r.Op], ofSets) }

// Where a move can take contents.
const (
	ToDisk = "disk"
	ToHost = "host"
)

const maxPath = 4095

// MaxSeconds is the longest that a request may make a process wait: a year.
const MaxSeconds = 365 * 24 * 3600

// DefaultTimeout is the timeout, in seconds, of a pause that names none.
const DefaultTimeout = 30

// Request is what a client asks.
type Request struct {
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
	// Lease, for a hold or an align: the process ends the hold or align, and the connection, after Lease seconds
	// without a line from this client, for instance because the client is stopped. With 0 it never does.
	Lease float64 `json:"lease,omitempty"`
	// Wait is how many seconds a resume keeps trying while memory is short, an undo waits for memory of other processes
	// (0: as long as usual), or an align waits for its targets. An align answers earlier if they are reached, or if a
	// thread is held back.
	Wait float64 `json:"wait,omitempty"`
	// Turn, for a resume: the client has the lock under which memory is taken in turn. The process then waits for others as
	// briefly as it can, and answers NotReady if it must have what they have not resumed.
	Turn bool `json:"turn,omitempty"`
	// Driver, for a note.
	Driver *Driver `json:"driver,omitempty"`
	// Everything, for a pause without a tag: the client will take the rest by the driver's checkpoint. The process
	// cannot see that, so it refuses what the driver cannot checkpoint, and remembers that it was asked. For a move:
	// the same client makes it, before the driver's checkpoint. For a resume: the client has undone the checkpoint.
	// While the process remembers, it refuses all other requests that change something.
	Everything bool `json:"everything,omitempty"`
	// To is ToDisk or ToHost for a move, or for a put of what is there. For a pause, ToDisk saves in files the contents
	// that would take new host memory.
	To      string `json:"to,omitempty"`
	Discard bool   `json:"discard,omitempty"` // for a pause: contents are given up, whatever backup they have
	// SaveAll, for a pause: contents without a backup go to host memory, too, because the program is not told of the
	// pause.
	SaveAll bool `json:"save_all,omitempty"`
	// Toward, for a pause of everything or with NCCL, says to which devices the process will move.
	Toward stats.Destinations `json:"toward,omitempty"`
	// Yield, for a pause: the process itself undoes it when one of its threads waits, even if this client is gone
	// (ProcessState.Share). For an undo: only what was so paused, and no other client wants paused, is resumed.
	Yield bool `json:"yield,omitempty"`
	// NCCL, for a pause without a tag: what NCCL holds is given back, too. For a hold: the reply names the
	// communicators for which that needs other processes.
	NCCL *NCCL `json:"nccl,omitempty"`
	// File, for a record, is an absolute path, as the process sees files, or "" to end the recording.
	File string `json:"file,omitempty"`
	// Share and Import, for a lend or returned, say which memory, and for which import of the asking process.
	Share  uint64 `json:"share,omitempty"`
	Import uint64 `json:"import,omitempty"`
	// For the keeper: the number of a set, which its maker has drawn, its name, and the UUID of its device.
	Set    uint64 `json:"set,omitempty"`
	Name   string `json:"name,omitempty"`
	Device string `json:"device,omitempty"`
	Bytes  uint64 `json:"bytes,omitempty"`  // of a put
	Before int    `json:"before,omitempty"` // for a put or seal: how many chunks the set has so far
	Node   *int   `json:"node,omitempty"`   // of an extent, for a put, take or give
	Joins  bool   `json:"joins,omitempty"`  // for a put: it is one more extent of the last chunk
	// Confirm, for a seal, open or take: the client sends an empty line once it has the reply and what came with it.
	// Else the keeper undoes the use that the request has begun: the client has given up, or it has ended.
	Confirm bool `json:"confirm,omitempty"`
	// Tensors, for a seal, is how many the set has.
	Tensors int `json:"tensors,omitempty"`
	// Targets, for an align, are by the names of sequences. Other sequences are not held back.
	Targets map[string]uint64 `json:"targets,omitempty"`
}

// NCCL is what a pause that suspends NCCL must know about the other processes: ncclCommSuspend waits for all ranks, and
// a wait for one that does not come has no end.
type NCCL struct {
	// Together names the communicators all of whose ranks get such a request at this moment.
	Together []string `json:"together,omitempty"`
	// Until is when it is too late to begin, because the others will have given up, in seconds since 1970.
	// (CLOCK_REALTIME)
	Until float64 `json:"until,omitempty"`
}

// Wait returns how long from now other ranks may wait for this rank, or 0 if they do not wait.
func (n *NCCL) Wait() time.Duration {
	if n == nil || len(n.Together) == 0 {
		return 0
	}
	return max(0, time.Until(time.UnixMicro(int64(n.Until*1e6))))
}

// Communicator is a communicator of NCCL that has ranks in several processes, and can be suspended in all of them at
// once.
type Communicator struct {
	Name  string `json:"name"`  // the same in each of its processes
	Ranks int    `json:"ranks"` // all of it
	Here  int    `json:"here"`  // those of the process
}

// Alignment is how far a process has come.
type Alignment struct {
	// Reached: everything in the targets that is the process's has begun and is launched, and nothing more.
	Reached bool `json:"reached"`
	// Captured: it has collectives in CUDA graphs, which are not counted.
	Captured  bool       `json:"captured"`
	Sequences []Sequence `json:"sequences"`
}

// Sequence is what ranks count alike: the collectives of a communicator, or what one of its ranks sends another.
type Sequence struct {
	Name   string `json:"name"`             // that of the communicator; or with the two ranks, "NAME:FROM:TO"
	Ranks  int    `json:"ranks"`            // of the communicator
	Here   int    `json:"here"`             // those of the process that have the sequence
	Begun  uint64 `json:"begun"`            // the most of these ranks
	Wanted bool   `json:"wanted,omitempty"` // a thread is held back before the next
}

// Reply answers one request.
type Reply struct {
	Version int    `json:"version"`
	ID      uint64 `json:"id,omitempty"`
	OK      bool   `json:"ok"`
	Code    int    `json:"code"` // a cudaError_t number; never 0 for a failure
	Error   string `json:"error,omitempty"`
	Bytes   uint64 `json:"bytes"` // of device memory that were freed, or taken, or are lent
	// Imported is for a pause or resume: bytes of sets and other processes that it has unmapped, or mapped again.
	Imported uint64 `json:"imported_bytes,omitempty"`
	Extent   uint64 `json:"extent,omitempty"` // bytes of the memory that comes, of which the lent are a part
	Offset   uint64 `json:"offset,omitempty"` // and where in it those begin
	Tag      string `json:"tag,omitempty"`    // of what is lent, as stats.TagText writes it
	Device   string `json:"device,omitempty"` // and its UUID
	// Stopped is for memory that is not lent: the program is stopped at the gate, so others decide when it is back.
	Stopped bool    `json:"stopped,omitempty"`
	Seconds float64 `json:"seconds"` // that it took
	// WithoutContents is for a pause: how many of Bytes have no backup, so that their contents are gone.
	WithoutContents uint64 `json:"without_contents_bytes,omitempty"`
	// Moved is for a pause to disk, or before a move: bytes of contents that went to files, or to the destination,
	// instead of host memory.
	Moved uint64 `json:"moved_bytes,omitempty"`
	// Host is for a pause or move that is refused for lack of host memory: the bytes that it needs, and the bytes
	// available.
	Host          uint64 `json:"host_bytes,omitempty"`
	HostAvailable uint64 `json:"host_available_bytes,omitempty"`
	NCCL          string `json:"nccl,omitempty"` // for a pause that suspends NCCL, or the resume: what became of NCCL
	// Note says that nothing was ever allocated with the tag, or that a pause has taken over what was yielded.
	Note string `json:"note,omitempty"`
	// Stays is for a pause with NCCL: why the driver cannot take the rest of the process, or "" if it can.
	Stays string `json:"stays,omitempty"`
	// Communicators are for a hold before a pause with NCCL.
	Communicators []Communicator  `json:"communicators,omitempty"`
	Alignment     *Alignment      `json:"alignment,omitempty"` // of an align
	Process       json.RawMessage `json:"process,omitempty"`   // of a status: a ProcessState
	Sets          []KeptSet       `json:"sets,omitempty"`      // of an open or list
	// Reserved is for a take: bytes of host memory that are free, by NUMA node.
	Reserved map[int]uint64 `json:"reserved,omitempty"`
}

// KeptSet is memory that the keeper holds.
type KeptSet struct {
	ID       uint64      `json:"id"`
	Name     string      `json:"name"`
	Device   string      `json:"device"` // its UUID
	Sealed   int64       `json:"sealed"` // when, in nanoseconds since 1970, or 0 while it is not complete
	Chunks   []KeptChunk `json:"chunks"`
	Place    string      `json:"place"`    // of its contents: ToHost, ToDisk, or "" for the device
	Bytes    uint64      `json:"bytes"`    // on its device
	Tensors  int         `json:"tensors"`  // 0 unless the Python package made its manifest
	Used     int64       `json:"used"`     // when it was sealed or a user last went, as Sealed
	Replaced bool        `json:"replaced"` // it was dropped or replaced, and a process still uses it
	Users    []int       `json:"users"`    // processes
}

// KeptChunk is what one descriptor of a set stands for. All processes have it by the same random number.
type KeptChunk struct {
	ID    uint64 `json:"id"`
	Bytes uint64 `json:"bytes"`
	// Node says that the chunk is in extents of reserved host memory, of that NUMA node: this one, and More.
	Node *int     `json:"node,omitempty"`
	More []uint64 `json:"more,omitempty"`
}

// Driver is the driver's part of a process that is paused with everything, as the client knows it that made the pause.
type Driver struct {
	Devices []DriverBytes `json:"devices"`        // those that the process was on
	Lost    string        `json:"lost,omitempty"` // why the driver can never give the process back, or "" if it can
}

// DriverBytes is what the driver has taken from one device.
type DriverBytes struct {
	UUID  string `json:"uuid"`
	Bytes uint64 `json:"bytes"` // a restore needs as many
}

// ProcessState is what a process says about itself.
type ProcessState struct {
	PID     int    `json:"pid"` // as the process knows it
	Command string `json:"command"`
	Doing   string `json:"doing"`   // the operation in progress that was asked for here; else ""
	Gated   bool   `json:"gated"`   // its threads can be held during a pause
	HeldUp  bool   `json:"held_up"` // and those that give a device work are held now
	// IdleSeconds is for how long no thread has given a device work, as far as known: each status looks, and counts
	// work since the last look as given now. It is nil where no look is possible.
	IdleSeconds *float64 `json:"idle_seconds"`
	// ResumeWait is how many seconds a resume waits for memory, if it names no time itself (TMS_RESUME_WAIT).
	ResumeWait float64 `json:"resume_wait_seconds"`
	Stats      Stats   `json:"stats"`
	// Devices are the devices on which the process has a context, in its own order; while everything is paused, those
	// on which it had one.
	Devices []Device  `json:"devices"`
	Stays   string    `json:"stays,omitempty"`   // why it cannot be moved to another GPU, as far as it knows
	Account *Account  `json:"account,omitempty"` // nil unless the process was asked to keep one (TMS_ACCOUNT)
	Share   *Share    `json:"share,omitempty"`   // nil unless the process shares (TMS_SHARE)
	Kept    []KeptSet `json:"kept,omitempty"`    // the complete sets that it has open, one that is open twice twice
	// Sharers are the processes that have its memory mapped, and those whose memory it has, mapped or paused.
	Sharers []int `json:"sharers,omitempty"`
	// Driver is for a process that is paused with everything. It is nil until a client has sent a note.
	Driver *Driver `json:"driver,omitempty"`
}

// Share is what those that need memory must know of a process that shares its devices.
type Share struct {
	Priority float64 `json:"priority"`
	// AtLeast is how long the process may run before others take its memory, or negative for a multiple of the price of
	// a swap.
	AtLeast float64 `json:"at_least_seconds"`
	Ran     float64 `json:"ran_seconds"` // since its memory came back, or it began to listen, without waits for more
	// Grew is how long ago the last wait for an allocation ended, or negative before the first such wait.
	Grew float64 `json:"grew_seconds"`
	// Away is the time in seconds between the last pause with Yield and the call that wanted the memory back, or
	// negative before there was such a call.
	Away float64 `json:"away_seconds"`
	// Yielded lists the tags that the process resumes when one of its threads waits, as stats.TagText writes them.
	Yielded []string `json:"yielded"`
	// Waited is for how many seconds a thread has waited for memory, or negative if no thread waits. Bytes is what the
	// thread wants to allocate on the device, besides what was yielded. With Resumes, it is paused memory that the
	// thread wants to resume there.
	Waited  float64 `json:"waited_seconds"`
	UUID    string  `json:"uuid"` // the device's, which may not be among those of Stats yet
	Bytes   uint64  `json:"bytes"`
	Resumes bool    `json:"resumes"`
	// HostLimit is how much host memory the contents of all processes that share may take together, or 0 for all that
	// the machine has. Disk allows this process to save contents in files beyond the limit.
	HostLimit uint64 `json:"host_limit_bytes"`
	Disk      bool   `json:"disk"`
}

// Stats is what the process holds, for tms_stats_json. Sizes are in bytes.
type Stats struct {
	Version string `json:"version"`
	Started bool   `json:"started"`
	stats.Stats
	// Everything reports whether everything was paused for the driver's checkpoint. The driver is not asked during that
	// time, so the devices' free_bytes, backup_bytes and untracked_bytes are 0.
	Everything bool `json:"everything"`
	// Capturing reports whether a stream is being captured into a CUDA graph, so that nothing can be paused or resumed.
	Capturing bool `json:"capturing"`
	// HostAvailableBytes is the host memory that the machine and the control group leave, or nil if that is unknown or
	// unlimited.
	HostAvailableBytes *uint64 `json:"host_available_bytes"`
	// DiskDirectory is where the next pause puts files; it may not be there yet.
	DiskDirectory string `json:"disk_directory"`
	// Pools has the statistics of the pools that serve the program under TMS_INIT_POOL: a list of torch.Stats, or nil
	// without such pools.
	Pools any `json:"pools"`
}

// Device is one of a process's devices.
type Device struct {
	Device int    `json:"device"` // its ordinal in the process
	UUID   string `json:"uuid"`   // as NVML has it, "GPU-…", or "" if the driver does not report it
}

// Account is the device memory of a process that is not pausable, as far as the process got it by functions that
// libtms.so interposes.
type Account struct {
	Others []Other `json:"others"`
	// Uncounted is how many allocations, since the start, found no room in the account, or had no known device.
	Uncounted uint64 `json:"uncounted"`
}

// What CUDA has given memory for.
const (
	Allocations = "allocations" // cudaMalloc, cuMemAlloc, cuMemCreate and their kind: the sum of what was asked for
	Pool        = "pool"        // a memory pool, of cudaMallocAsync and its kind: what it has reserved
	Graphs      = "graphs"      // allocations of CUDA graphs: what is reserved for them
)

// Other is what CUDA itself has given on one device.
type Other struct {
	Device int `json:"device"`
	// Library is the name of the file, without folders, that asked for it; for a pool, of the first that took memory
	// from it. It is "" if the library is not known, as for a device's graphs.
	Library string `json:"library"`
	Kind    string `json:"kind"`  // one of the above
	Bytes   uint64 `json:"bytes"` // of device memory
	Count   uint64 `json:"count"` // of allocations or pools; 0 for graphs
}

// ParseRequest reads a line, without its end. For a line that it refuses, it sets the ID if it understood that.
func ParseRequest(line []byte) (Request, error) {
	var r Request
	if !utf8.Valid(line) {
		return r, errors.New("a request is a line of JSON, and this one is not even UTF-8")
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		if r.Version > Version { // its fields may be others
			return r, wrongVersion(r.Version)
		}
		return r, fmt.Errorf("a request is a line of JSON, and this one is not understood: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return r, errors.New("a request is one JSON object a line; here is more behind it")
	}
	if r.Version != Version {
		return r, wrongVersion(r.Version)
	}
	return r, r.check()
}

func wrongVersion(version int) error {
	return fmt.Errorf("the request has version %d of the protocol, and this process speaks version %d", version,
		Version)
}

func (r *Request) check() error {
	fields, known := takes[r.Op]
	if !known {
		return fmt.Errorf("there is no operation %q; there are status, pause, resume, keep, undo, "+
			"move, record and align", r.Op)
	}
	allowed, request := strings.Fields("version id op "+fields), reflect.ValueOf(r).Elem()
	for i := range request.NumField() {
		name, _, _ := strings.Cut(request.Type().Field(i).Tag.Get("json"), ",")
		if !request.Field(i).IsZero() && !slices.Contains(allowed, name) {
			return fmt.Errorf("the operation %s takes no %s", r.Op, name)
		}
	}
	switch {
	case r.File != "" && (r.File[0] != '/' || len(r.File) > maxPath || strings.ContainsRune(r.File, 0)):
		return fmt.Errorf("%.100q: a record takes a file by its path from the root", r.File)
	case r.Op == Pause && r.Tag != nil && (r.Everything || r.NCCL != nil):
		return errors.New("only a pause without a tag takes everything or nccl")
	case r.Toward != nil && !r.Everything && r.NCCL == nil:
		return errors.New("only a pause of everything, or with nccl, takes toward")
	case r.Op == Move && r.To == "" || r.To != "" && r.To != ToDisk && (r.Op == Pause || r.To != ToHost):
		return fmt.Errorf("%q is no place for contents: to is disk or host for a move, and disk for a pause", r.To)
	case r.Discard && r.SaveAll || r.Yield && r.Everything:
		return errors.New("discard excludes save_all, and yield excludes everything")
	case r.NCCL != nil && len(r.NCCL.Together) > 0 && (r.Hold || r.NCCL.Until <= 0):
		return errors.New("only the pause after a hold takes together, and until says when it ends")
	case r.Hold && (r.Everything || r.Idle != nil || r.Toward != nil || r.Yield):
		return errors.New("a hold comes before a pause, and takes no everything, idle, toward or yield")
	case r.Op == Note && r.Driver == nil:
		return errors.New("a note has the driver's part")
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

// TimeoutSeconds returns Timeout, or its default.
func (r *Request) TimeoutSeconds() float64 {
	if r.Timeout == nil {
		return DefaultTimeout
	}
	return *r.Timeout
}

// IdleSeconds returns Idle, or a negative number where there is none.
func (r *Request) IdleSeconds() float64 {
	if r.Idle == nil {
		return -1
	}
	return *r.Idle
}

// Seconds returns the duration of a request's number of seconds.
func Seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Line returns a request or reply as it is sent.
func Line(message any) []byte {
	line, err := json.Marshal(message)
	if err != nil { // no field of either can make one
		line = fmt.Appendf(nil, `{"version":%d,"ok":false,"code":999,"error":%q}`, Version, err)
	}
	return append(line, '\n')
}
