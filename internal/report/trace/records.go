package trace

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"time"
)

// preload/watch/recording.c writes a header of 64 bytes, then records of 64 bytes in the order in which they were made,
// all little-endian. A record of kind 0 was never written, and marks the end. Times are nanoseconds of CLOCK_MONOTONIC.
//
//	header  0 "TMSTRACE"  8 uint32 version, 1  12 uint32 process  16 uint64 monotonic  24 uint64 realtime, of the
//	        same moment, nanoseconds since 1970  32 int64 seconds east of UTC
//	record  0 uint8 kind  1 uint8 flags  2 int16 device, -1: not known  4 uint32 thread  8 uint64 time
//	        16 uint64 address  24 size  32 stream  40 pool  48 tag  56 other
//
// Some kinds give the fields of a record other meanings. A tag is a number for which an earlier Text has given the
// name.
const (
	magic       = "TMSTRACE"
	fileVersion = 1
	recordSize  = 64
)

// Kind is the kind of a record.
type Kind uint8

const (
	Made          Kind = iota + 1 // Address, Size, Stream, Pool: a block. Tag: of the region, if it is pausable
	Freed                         // Address; Stream, if FlagStream; Size, if FlagMapped: all that is mapped there
	Refused                       // Size, Stream, and in Other the error code
	Unfreed                       // Address: the thread's last Freed failed
	PoolDestroyed                 // Pool: all of its blocks are freed
	Text                          // of Size bytes, in as many whole records behind it: a Tag's name, or what Other says
	Begin                         // Flags: an Operation, on Tag, or with 0 on all. Thread: its number
	// End has the fields of Begin, the error code in Device, and in Address the nanoseconds that the operation took: Pool
	// of them for waiting, and Other for contents. Size is bytes of device memory, and Stream bytes of contents.
	End
	Figures // of Tag on Device, bytes: Address live, Size physical, Stream in host memory, Pool in files, Other peers
)

// Flags of Made and Freed.
const (
	FlagPausable = 1 << iota // in a region
	FlagEarlier              // made before the recording
	FlagStream               // a free has a stream of its own
	FlagBlock                // a pool's: only the pool's own segments count
	FlagMapped               // memory that the program makes and maps itself: PyTorch's expandable segments
)

// Operation is what begins with Begin and ends with End.
type Operation uint8

const (
	Pause Operation = iota + 1
	Resume
	Move
	Wait // for memory that other processes have
)

var operations = map[Operation]string{Pause: "pause", Resume: "resume", Move: "move", Wait: "wait"}

// String returns the operation's name.
func (o Operation) String() string {
	return cmp.Or(operations[o], fmt.Sprintf("operation %d", uint8(o)))
}

// Other of a Text, besides 0 for a tag.
const (
	textCommand = 1
	textDevice  = 2 // the UUID of the GPU that Device is from then on
)

// Place is a device of the process, by the process's own number, and the UUID of the GPU.
type Place struct {
	Device int    `json:"device"`
	UUID   string `json:"uuid"`
}

// Record is one record; the comments at Kind explain its fields.
type Record struct {
	Kind                                    Kind
	Flags                                   uint8
	Device                                  int16
	Thread                                  uint32
	Time                                    uint64
	Address, Size, Stream, Pool, Tag, Other uint64
}

// Records reads the records of a file one after another, without Texts.
type Records struct {
	Name    string // the file's path
	PID     int
	Command string  // known after the first record
	Places  []Place // as far as it was read: the last of a device is where it is
	zero    int64   // nanoseconds since 1970 at monotonic 0
	zone    *time.Location
	tags    map[uint64]string
	from    *bufio.Reader
	count   int
}

// NewRecords reads the header. Errors: ErrMalformed, or the reader's.
func NewRecords(name string, from io.Reader) (*Records, error) {
	var header [recordSize]byte
	buffered := bufio.NewReaderSize(from, 1<<20)
	if _, err := io.ReadFull(buffered, header[:]); err != nil && !ended(err) {
		if failed, ok := errors.AsType[*fs.PathError](err); ok {
			err = failed.Err // without the path, which comes before
		}
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if string(header[:len(magic)]) != magic {
		return nil, fmt.Errorf("%s: %w: it does not begin with %s, as recordings of TMS_TRACE and tms record do", name,
			ErrMalformed, magic)
	}
	le := binary.LittleEndian
	if version := le.Uint32(header[8:]); version != fileVersion {
		return nil, fmt.Errorf("%s: %w: it has version %d, and this tms reads version %d", name, ErrMalformed, version,
			fileVersion)
	}
	return &Records{Name: name, PID: int(le.Uint32(header[12:])),
		zero: int64(le.Uint64(header[24:]) - le.Uint64(header[16:])),
		zone: time.FixedZone("", int(int64(le.Uint64(header[32:])))), tags: map[uint64]string{}, from: buffered}, nil
}

// OpenRecords is NewRecords of a file, which the caller closes. It decompresses a file whose name ends in .gz.
func OpenRecords(path string) (*Records, io.Closer, error) {
	from, file, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	r, err := NewRecords(path, from)
	if err != nil {
		_ = file.Close()
		return nil, nil, err
	}
	return r, file, nil
}

// Next returns the next record, and reports whether there was another. Errors: ErrMalformed, or the reader's.
func (r *Records) Next() (Record, bool, error) {
	for {
		record, ok, err := r.raw()
		if !ok || err != nil || record.Kind != Text {
			return record, ok, err
		}
		text := make([]byte, (record.Size+recordSize-1)/recordSize*recordSize)
		if _, err := io.ReadFull(r.from, text); err != nil {
			return Record{}, false, nil // the process ended within it
		}
		switch text = text[:record.Size]; record.Other {
		case textCommand:
			r.Command = string(text)
		case textDevice:
			r.Places = append(r.Places, Place{int(record.Device), string(text)})
		default:
			r.tags[record.Tag] = string(text)
		}
	}
}

const longestText = 1 << 16

func ended(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func (r *Records) raw() (Record, bool, error) {
	var b [recordSize]byte
	switch _, err := io.ReadFull(r.from, b[:]); {
	case err != nil && !ended(err):
		return Record{}, false, fmt.Errorf("%s: %w", r.Name, err)
	case err != nil || b[0] == 0:
		return Record{}, false, nil
	}
	r.count++
	le := binary.LittleEndian
	record := Record{Kind: Kind(b[0]), Flags: b[1], Device: int16(le.Uint16(b[2:])), Thread: le.Uint32(b[4:]),
		Time: le.Uint64(b[8:]), Address: le.Uint64(b[16:]), Size: le.Uint64(b[24:]), Stream: le.Uint64(b[32:]),
		Pool: le.Uint64(b[40:]), Tag: le.Uint64(b[48:]), Other: le.Uint64(b[56:])}
	if record.Kind > Figures || record.Kind == Text && record.Size > longestText {
		return Record{}, false, fmt.Errorf("%s: %w: this tms does not know the kind of record %d", r.Name, ErrMalformed,
			r.count)
	}
	return record, true, nil
}

// TagName returns the name of a record's tag, or "" if it has none.
func (r *Records) TagName(record Record) string { return r.tags[record.Tag] }

// At returns the time of a record, in the zone of the process.
func (r *Records) At(record Record) time.Time {
	return time.Unix(0, r.zero+int64(record.Time)).In(r.zone)
}

// Live keeps track of live blocks.
type Live struct {
	blocks map[uint64]Record // by address
	freed  map[uint32]Record // the last of each thread
}

// NewLive returns a Live without blocks.
func NewLive() *Live { return &Live{map[uint64]Record{}, map[uint32]Record{}} }

// Apply applies a record. It calls made for each new block, and freed for each freed one with the stream of the free. A
// block at whose address another appears was freed unseen (by a reset of the device). It ignores a free of a block that
// the records do not have.
func (l *Live) Apply(r Record, made func(Record), freed func(block Record, stream uint64)) {
	end := func(b Record, stream uint64) {
		delete(l.blocks, b.Address)
		freed(b, stream)
	}
	switch r.Kind {
	case Made:
		if before, live := l.blocks[r.Address]; live {
			end(before, before.Stream)
		}
		l.blocks[r.Address] = r
		made(r)
	case Freed:
		if r.Flags&FlagMapped != 0 {
			for at := r.Address; at-r.Address < r.Size; {
				b, live := l.blocks[at]
				if !live || b.Size == 0 {
					break
				}
				end(b, b.Stream)
				at += b.Size
			}
			return
		}
		if b, live := l.blocks[r.Address]; live {
			l.freed[r.Thread] = b
			if r.Flags&FlagStream == 0 {
				r.Stream = b.Stream
			}
			end(b, r.Stream)
		}
	case Unfreed:
		if b, known := l.freed[r.Thread]; known && b.Address == r.Address {
			delete(l.freed, r.Thread)
			l.blocks[b.Address] = b
			made(b)
		}
	case PoolDestroyed:
		others := func(b Record) bool { return b.Pool != r.Pool || r.Pool == 0 }
		all := slices.DeleteFunc(slices.Collect(maps.Values(l.blocks)), others)
		slices.SortFunc(all, func(x, y Record) int { return cmp.Compare(x.Address, y.Address) })
		for _, b := range all {
			end(b, b.Stream)
		}
	}
}

// readRecords makes a Trace of a file of records. It leaves out memory in which the program's own allocator places
// blocks, because that could not be replayed.
func readRecords(name string, from io.Reader) (*Trace, error) {
	records, err := NewRecords(name, from)
	if err != nil {
		return nil, err
	}
	t, live := &Trace{Name: name}, NewLive()
	numbers := map[uint64]uint32{} // of live blocks, by address
	made := func(b Record) {
		t.Blocks++
		numbers[b.Address] = uint32(t.Blocks)
		t.Events = append(t.Events, Event{Allocate, numbers[b.Address], b.Size, b.Stream})
	}
	freed := func(b Record, stream uint64) {
		t.Events = append(t.Events, Event{Free, numbers[b.Address], b.Size, stream})
		delete(numbers, b.Address)
	}
	for {
		record, ok, err := records.Next()
		switch {
		case err != nil:
			return nil, err
		case !ok:
			return t, nil
		case (record.Kind == Made || record.Kind == Freed) && record.Flags&FlagMapped != 0:
		case record.Kind == Refused:
			t.Events = append(t.Events, Event{Action: Failure, Size: record.Size, Stream: record.Stream})
		default:
			live.Apply(record, made, freed)
		}
	}
}
