// Package control is the protocol between a process that can be steered from outside and its clients, over a
// Unix socket: a line of JSON for each request, and one for each reply. Package server answers and package client asks.
// docs/protocol.md has it for clients in other languages. Nothing in this package keeps a descriptor open but
// LockDirectory, and only that and Search wait.
//
// The nouns: a request steers a process (SteerRequest), is for memory that one process exports to another
// (LendRequest), or asks the keeper for a set (SetRequest). An operation is the work it asks for. A reply answers it.
// A status has a process's state. A hold stops threads until its client's pause.
//
// A client has at most one request in progress that changes something, and may ask for a status during that time.
// Requests that change something are carried out one after another, whichever client they come from. What a client has
// paused is resumed when its connection ends, unless it or another client has asked to keep it; a request that has not
// begun is then withdrawn (package rights says which client is responsible for what). A client that closes its side
// of the connection for writing still gets the replies that are due.
package control

import (
	"encoding/json"
	"fmt"
	"time"

	"tms/vmm/stats"
)

// Version is the protocol's version, as far as this process understands it. A field or operation without which a request
// would mean something else raises it, and requests that have such a field say so by their version. A process refuses
// a later version, and ignores fields that it does not know.
const Version = 4

// Limits of a process that answers.
const (
	MaxLine    = 64 << 10 // bytes of a request
	MaxClients = 16       // the process refuses more
)

// Look is how often a process checks that its socket is still in its directory, and makes a new one if it is not.
const Look = 2 * time.Second

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
	Here  int    `json:"here"`  // ranks of the process
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
	Here   int    `json:"here"`             // ranks of the process that have the sequence
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
	// Ignored names fields of the request that the process does not know.
	Ignored []string `json:"ignored,omitempty"`
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
	Contents      []Held          `json:"contents,omitempty"`  // of a contents
	Process       json.RawMessage `json:"process,omitempty"`   // of a status: a ProcessState
	Sets          []KeptSet       `json:"sets,omitempty"`      // of an open or list
	// Reserved is for a take: bytes of host memory that are free, by NUMA node.
	Reserved map[int]uint64 `json:"reserved,omitempty"`
}

// Held is a descriptor that the socket's thread of a process holds.
type Held struct {
	Number uint64 `json:"share"`
	Bytes  uint64 `json:"bytes"` // the size of its file
}

// KeptSet is memory that the keeper holds.
type KeptSet struct {
	ID       uint64      `json:"id"`
	Name     string      `json:"name"`
	Device   string      `json:"device"`        // its UUID
	GPU      *int        `json:"gpu,omitempty"` // as of stats.Device
	Sealed   int64       `json:"sealed"`        // when, in nanoseconds since 1970, or 0 while it is not complete
	Chunks   []KeptChunk `json:"chunks"`
	Place    string      `json:"place"`    // of its contents: ToHost, ToDisk, or "" for the device
	Bytes    uint64      `json:"bytes"`    // on its device
	Tensors  int         `json:"tensors"`  // 0 unless the Python package made its manifest
	Used     int64       `json:"used"`     // when it was sealed or a user last went, as Sealed
	Replaced bool        `json:"replaced"` // it was dropped or replaced, and a process still uses it
	// Version counts the complete sets of the name: one that takes over the name is the next. A copy keeps it.
	Version uint64 `json:"version,omitempty"`
	// Maker is the process that is writing the set, while it is not complete.
	Maker int `json:"maker,omitempty"`
	// Follows is for a process's status: an Advance moves the set.
	Follows bool  `json:"follows,omitempty"`
	Users   []int `json:"users"` // processes
}

// KeptChunk is what one descriptor of a set stands for. All processes have it by the same random number.
type KeptChunk struct {
	ID    uint64 `json:"id"`
	Bytes uint64 `json:"bytes"`
	// Node says that the chunk is in extents of reserved host memory, of that NUMA node: this one, and More.
	Node *int     `json:"node,omitempty"`
	More []uint64 `json:"more,omitempty"`
}

// Adopted says which set of the keeper is in the place of one that a restored process had.
type Adopted struct {
	Was []uint64 `json:"was"` // the number of the set in the snapshot, and those of its chunks
	Set KeptSet  `json:"set"`
}

// Numbers returns the new number for each old one.
func (a Adopted) Numbers() map[uint64]uint64 {
	numbers := map[uint64]uint64{a.Was[0]: a.Set.ID}
	for i, chunk := range a.Set.Chunks {
		numbers[a.Was[1+i]] = chunk.ID
	}
	return numbers
}

// Driver is the driver's part of a process that is paused with everything, as the client knows it that made the pause.
type Driver struct {
	Devices []DriverBytes `json:"devices"`        // devices that the process was on
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
	// PausedBy has the pauses that last until a resume or their time.
	PausedBy []LastingPause `json:"paused_by,omitempty"`
	// Driver is for a process that is paused with everything. It is nil until a client has sent a note.
	Driver *Driver `json:"driver,omitempty"`
}

// LastingPause is a pause that outlasts the client that made it.
type LastingPause struct {
	User  string   `json:"user"`            // who made it, as the client says, or else the number of UID
	UID   int      `json:"uid"`             // of the client, as the kernel says
	PID   int      `json:"client_pid"`      // of the client, which may have ended, or 0 if the process could not see it
	Since float64  `json:"since"`           // when, in seconds since 1970
	Until float64  `json:"until,omitempty"` // when the process resumes what it took, as Since, or 0 for never
	To    string   `json:"lent_to,omitempty"`
	Tags  []string `json:"tags,omitempty"` // that the program itself cannot resume, or none for all
	// Awaits is how many files of contents a process that was restored from a snapshot has not got yet.
	Awaits int `json:"awaits,omitempty"`
}

// Words says which command made the pause, and for whom.
func (k *LastingPause) Words() string {
	who := k.User
	if k.PID > 0 {
		who += fmt.Sprintf(", process %d", k.PID)
	}
	if k.Until == 0 {
		return "tms pause (" + who + ")"
	}
	if k.To != "" {
		who += ", to " + k.To
	}
	return fmt.Sprintf("tms lend (%s, until %s)", who, k.End().Format("15:04:05"))
}

// End returns Until as a time of the clock on the wall.
func (k *LastingPause) End() time.Time { return time.UnixMicro(int64(k.Until * 1e6)) }

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
	Device int    `json:"device"`        // its ordinal in the process
	UUID   string `json:"uuid"`          // as NVML has it, "GPU-…", or "" if the driver does not report it
	GPU    *int   `json:"gpu,omitempty"` // as of stats.Device
}

// Account is the device memory of a process that is not pausable, as far as the process got it by functions that
// libtms.so interposes.
type Account struct {
	Others []Other `json:"others"`
	// Uncounted is how many allocations, since the start, found no room in the account, or had no known device.
	Uncounted uint64 `json:"uncounted"`
}

// Kinds of memory that CUDA has given.
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
