package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// ErrMalformed: a line is not what the format allows, or frees what is not live. The error that wraps it
// begins with the file and the line.
var ErrMalformed = errors.New("malformed trace")

// longest is the most bytes that a line may have; real ones have less than a hundred.
const longest = 4096

// ReadFile reads a trace; a file whose name ends in .gz is decompressed.
// Errors: ErrMalformed, or the operating system's.
func ReadFile(path string) (*Trace, error) {
	from, file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Read(path, from)
}

// open returns what a file has, decompressed, and the file to close.
func open(path string) (io.Reader, io.Closer, error) {
	file, err := os.Open(path)
	if err != nil || !strings.HasSuffix(path, ".gz") {
		return file, file, err
	}
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		_ = file.Close()
		return nil, nil, fmt.Errorf("%s:1: %w: %w", path, ErrMalformed, err)
	}
	return unpacked, file, nil
}

// Read reads a trace, of records or of lines. Fields of lines are as RMM writes them: Thread and Size decimal, Pointer hexadecimal with or
// without 0x, or (nil), Stream decimal or with 0x; Time is not looked at. A free's size is that of its
// allocate or 0. Blocks may be live at the end. Errors: ErrMalformed, or the reader's.
func Read(name string, from io.Reader) (*Trace, error) {
	buffered := bufio.NewReader(from)
	if begin, _ := buffered.Peek(len(magic)); IsRecords(begin) {
		return readRecords(name, buffered)
	}
	r := reader{trace: &Trace{Name: name}, live: map[uint64]allocation{}}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(make([]byte, longest), longest)
	number := 0
	for lines.Scan() {
		number++
		if err := r.line(number, bytes.TrimSuffix(lines.Bytes(), []byte{'\r'})); err != nil {
			return nil, fmt.Errorf("%s:%d: %w: %w", name, number, ErrMalformed, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, fmt.Errorf("%s:%d: %w: a line of more than %d bytes", name, number+1, ErrMalformed, longest)
	case err != nil:
		return nil, fmt.Errorf("%s:%d: %w: %w", name, number+1, ErrMalformed, err)
	case number == 0:
		return nil, fmt.Errorf("%s:1: %w: it is empty; the first line is %s", name, ErrMalformed, Header)
	}
	return r.trace, nil
}

type reader struct {
	trace *Trace
	live  map[uint64]allocation // by pointer
}

type allocation struct {
	block uint32
	size  uint64
	line  int
}

const fields = 6

func (r *reader) line(number int, text []byte) error {
	if number == 1 {
		if string(text) != Header {
			return fmt.Errorf("the header is %.80q, not %q", text, Header)
		}
		return nil
	}
	parts := bytes.Split(text, []byte{','})
	if len(parts) != fields {
		return fmt.Errorf("%d fields, not the %d of %s", len(parts), fields, Header)
	}
	field := func(i int) string { return string(bytes.TrimSpace(parts[i])) }
	if _, err := whole("Thread", field(0), 10); err != nil {
		return err
	}
	pointer, err := parsePointer(field(3))
	if err != nil {
		return err
	}
	size, err := whole("Size", field(4), 10)
	if err != nil {
		return err
	}
	stream, err := whole("Stream", field(5), 10)
	if digits, found := strings.CutPrefix(field(5), "0x"); found {
		stream, err = whole("Stream", digits, 16)
	}
	if err != nil {
		return err
	}
	event := Event{Size: size, Stream: stream}
	switch action := field(2); action {
	case "allocate":
		return r.allocate(number, pointer, event)
	case "free":
		return r.free(pointer, event)
	case "allocate failure":
		event.Action = Failure
		r.trace.Events = append(r.trace.Events, event)
		return nil
	default:
		return fmt.Errorf("the action is %.40q, not allocate, free or allocate failure", action)
	}
}

func (r *reader) allocate(number int, pointer uint64, event Event) error {
	event.Action = Allocate
	if pointer == 0 {
		if event.Size > 0 {
			return fmt.Errorf("an allocate of %d bytes at pointer 0", event.Size)
		}
		r.trace.Events = append(r.trace.Events, event)
		return nil
	}
	if earlier, live := r.live[pointer]; live {
		return fmt.Errorf("pointer %#x is allocated a second time; it is live since line %d", pointer, earlier.line)
	}
	r.trace.Blocks++
	event.Block = uint32(r.trace.Blocks)
	r.live[pointer] = allocation{event.Block, event.Size, number}
	r.trace.Events = append(r.trace.Events, event)
	return nil
}

func (r *reader) free(pointer uint64, event Event) error {
	event.Action = Free
	if pointer == 0 {
		r.trace.Events = append(r.trace.Events, event)
		return nil
	}
	a, live := r.live[pointer]
	if !live {
		return fmt.Errorf("a free of pointer %#x, which is not live", pointer)
	}
	if event.Size != 0 && event.Size != a.size {
		return fmt.Errorf("a free of %d bytes at pointer %#x, of which line %d allocated %d", event.Size, pointer, a.line, a.size)
	}
	delete(r.live, pointer)
	event.Block, event.Size = a.block, a.size
	r.trace.Events = append(r.trace.Events, event)
	return nil
}

// whole reads a number of 64 bits.
func whole(field, text string, base int) (uint64, error) {
	value, err := strconv.ParseUint(text, base, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Errorf("field %s %.40s does not fit in 64 bits", field, text)
	case err != nil:
		return 0, fmt.Errorf("field %s %.40q is not a whole number", field, text)
	}
	return value, nil
}

func parsePointer(text string) (uint64, error) {
	if text == "(nil)" {
		return 0, nil
	}
	value, err := strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
	if err != nil {
		return 0, fmt.Errorf("field Pointer %.40q is not a hexadecimal number of 64 bits", text)
	}
	return value, nil
}
