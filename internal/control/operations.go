package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"
)

// The operations of a SteerRequest.
const (
	Status = "status" // the memory of the process, and its operations
	Pause  = "pause"  // gives the memory of a tag, or of all, back to the device
	Resume = "resume" // takes the memory again
	Keep   = "keep"   // memory that this client has paused stays paused when it goes
	Undo   = "undo"   // resumes what this client alone has paused, but not lasting pauses; ends its hold
	// Complete says that all memory has come for which this client's resume waits (SteerRequest.Ahead). An undo says that
	// it does not come, and the resume gives back what it has taken.
	Complete = "complete"
	Move     = "move" // moves the contents of what is paused from host memory to disk, or back
	// Note gives the process what a client of a pause of everything knows of the driver's part, for later clients.
	Note   = "note"
	Record = "record" // records allocations and pauses to a file, until the client asks without one, or goes
	// Align holds threads back before they begin more NCCL collectives than the targets say, or without targets more
	// than they have begun by now, until this client keeps, undoes or goes. It tells how far the process has come. Only
	// one client at a time can align.
	Align = "align"
	// Advance maps the newest version of a set in the place of the one that the process has, between two of its steps, or
	// the version before.
	Advance = "advance"
	// Contents answers with the descriptors that the process holds, each of which a Lend gives a copy of.
	Contents = "contents"
	// Park has the socket's thread do nothing, so that CRIU can dump the process, until this client's next line or its
	// end. A process that is restored from such a dump keeps the client's pause, and awaits its contents by Put.
	Park = "park"
	// Adopt gives the sets that a restored process has open the numbers by which the keeper has them here, before the
	// process gets its contents. The process then counts as a user of these sets.
	Adopt = "adopt"
)

// The operations of a LendRequest, between processes of which one has the other's memory mapped; see vmm.Processes.
// None of these waits for a pause.
const (
	Lend     = "lend"     // answers with the descriptor of memory (SCM_RIGHTS)
	Returned = "returned" // that is no longer mapped
	Hand     = "hand"     // from a process to itself: that descriptor, from the thread that can make it
)

// The operations of a SetRequest, for the keeper (package sets), which answers a Lend, too. By put and close a process
// also tells itself which descriptors to keep open, for a lend to the next keeper.
const (
	Put = "put" // gives a set, which this process makes, one more chunk: its descriptor comes with the request
	// Seal completes the set: the descriptor of its manifest comes with the request.
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

// operations has all of them: for each, how its request is read, and which fields it takes, by their names in JSON.
var operations = map[string]struct {
	read   func(line []byte) (Request, error)
	fields string
}{
	Status: {read[SteerRequest], ""},
	Pause:  {read[SteerRequest], "tag timeout idle force hold lease everything to discard save_all save_sets toward yield nccl parts"},
	Resume: {read[SteerRequest], "tag wait everything turn ahead"},
	Keep:   {read[SteerRequest], "own user lent_to until"},
	Undo:   {read[SteerRequest], "wait yield ahead"},
	Move:   {read[SteerRequest], "tag everything to"},
	Note:   {read[SteerRequest], "driver"},
	Record: {read[SteerRequest], "file"},
	Align:  {read[SteerRequest], "lease wait targets"},

	Advance:  {read[SteerRequest], "name timeout back"},
	Complete: {read[SteerRequest], ""},
	Contents: {read[SteerRequest], ""},
	Park:     {read[SteerRequest], "user lease"},
	Adopt:    {read[SteerRequest], "sets"},

	Lend:     {read[LendRequest], "share import"},
	Returned: {read[LendRequest], "share import"},
	Hand:     {read[LendRequest], ""},

	Put:   {read[SetRequest], ofSets + " to joins"},
	Seal:  {read[SetRequest], ofSets + " restored nameless"},
	Open:  {read[SetRequest], ofSets},
	Close: {read[SetRequest], ofSets},
	List:  {read[SetRequest], ofSets},
	Drop:  {read[SetRequest], ofSets},
	Take:  {read[SetRequest], ofSets},
	Give:  {read[SetRequest], ofSets},
}

// ofSets are the fields of requests to the keeper.
const ofSets = "share set name device bytes before tensors node confirm"

// types are those of requests, each of which reads its own fields of a line.
var types = []func(line []byte) (Request, error){read[SteerRequest], read[LendRequest], read[SetRequest]}

func read[R Request](line []byte) (Request, error) {
	var r R
	err := json.Unmarshal(line, &r)
	return r, err
}

// ParseRequest reads a line, without its end. The ID is returned even for a line that is refused, if it was understood.
func ParseRequest(line []byte) (r Request, id uint64, err error) {
	if !utf8.Valid(line) {
		return nil, 0, errors.New("a request is a line of JSON, and this one is not even UTF-8")
	}
	var head struct {
		Version int    `json:"version"`
		ID      uint64 `json:"id"`
		Op      string `json:"op"`
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	err = decoder.Decode(&head)
	if err == nil {
		if _, more := decoder.Token(); !errors.Is(more, io.EOF) {
			return nil, head.ID, errors.New("a request is one JSON object a line; here is more behind it")
		}
	}
	if head.Version > Version { // its fields may be others
		return nil, head.ID, wrongVersion(head.Version)
	}
	if err != nil {
		return nil, head.ID, notUnderstood(err)
	}
	if head.Version < 1 {
		return nil, head.ID, wrongVersion(head.Version)
	}
	operation, known := operations[head.Op]
	if !known {
		return nil, head.ID, fmt.Errorf("there is no operation %q; there are status, pause, resume, keep, undo, "+
			"complete, move, record, align, advance, contents and park", head.Op)
	}
	if err = takesOnly(line, head.Op, strings.Fields("version id op "+operation.fields)); err != nil {
		return nil, head.ID, err
	}
	if r, err = operation.read(line); err != nil {
		return nil, head.ID, notUnderstood(err)
	}
	return r, head.ID, r.check()
}

func notUnderstood(err error) error {
	return fmt.Errorf("a request is a line of JSON, and this one is not understood: %w", err)
}

func wrongVersion(version int) error {
	return fmt.Errorf("the request has version %d of the protocol, and this process speaks version %d", version,
		Version)
}

// Unknown returns the fields of a request's line that no request has. A process ignores them, and names them in its
// reply. Like encoding/json, Unknown ignores the case of names.
func Unknown(line []byte) (unknown []string) {
	var fields map[string]json.RawMessage
	_ = json.Unmarshal(line, &fields) // a line that is no object is refused
	var names []string
	for _, of := range []reflect.Type{reflect.TypeFor[SteerRequest](), reflect.TypeFor[LendRequest](),
		reflect.TypeFor[SetRequest]()} {
		for i := range of.NumField() {
			if name := jsonName(of.Field(i)); name != unsent {
				names = append(names, name)
			}
		}
	}
	for field := range fields {
		if !slices.ContainsFunc(names, func(name string) bool { return strings.EqualFold(name, field) }) {
			unknown = append(unknown, field)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// takesOnly refuses a line that says something in a field that its operation does not take. A field of any request may
// be there if it says nothing: it is zero.
func takesOnly(line []byte, operation string, allowed []string) error {
	for _, read := range types {
		r, err := read(line)
		if err != nil {
			return notUnderstood(err)
		}
		value := reflect.ValueOf(r)
		for i := range value.NumField() {
			name := jsonName(value.Type().Field(i))
			if !value.Field(i).IsZero() && name != unsent && !slices.Contains(allowed, name) {
				return fmt.Errorf("the operation %s takes no %s", operation, name)
			}
		}
	}
	return nil
}

// unsent is the name of a field that is sent as another one.
const unsent = "-"

func jsonName(field reflect.StructField) string {
	name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
	return name
}
