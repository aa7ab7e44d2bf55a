package trace

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// ErrMalformed: the format does not allow a line, or the line frees a block that is not live. The error that wraps it
// begins with the file and the line.
var ErrMalformed = errors.New("malformed trace")

// longest is the most bytes of a line; real lines have less than a hundred.
const longest = 4096

// ReadFile reads a trace, and decompresses a file whose name ends in .gz. Errors: ErrMalformed, or the operating
// system's.
func ReadFile(path string) (*Trace, error) {
	from, file, err := open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return Read(path, from)
}

// open returns a reader of a file, decompressed, and the file to close.
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

// Read reads a trace of records or of lines. Fields of lines are as RMM writes them: Thread and Size decimal, Pointer
// hexadecimal with or without 0x, or (nil), Stream decimal or with 0x; Read ignores Time. A free has the size of its
// allocate or 0. Blocks may be live at the end. Errors: ErrMalformed, or the reader's.
func Read(name string, from io.Reader) (*Trace, error) {
	buffered := bufio.NewReader(from)
	if begin, _ := buffered.Peek(len(magic)); string(begin) == magic {
		return readRecords(name, buffered)
	}
	r := reader{trace: &Trace{Name: name}, live: map[uint64]allocation{}}
	lines := bufio.NewScanner(buffered)
	lines.Buffer(make([]byte, longest), longest)
	number := 0
	for lines.Scan() {
		number++
		if err := r.line(number, lines.Text()); err != nil {
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

func (r *reader) line(number int, text string) error {
	if number == 1 {
		if text != Header {
			return fmt.Errorf("the header is %.80q, not %q", text, Header)
		}
		return nil
	}
	fields := strings.Split(text, ",")
	if len(fields) != 6 {
		return fmt.Errorf("%d fields, not the 6 of %s", len(fields), Header)
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	_, err := whole("Thread", fields[0], 10)
	if err != nil {
		return err
	}
	pointer, err := parsePointer(fields[3])
	if err != nil {
		return err
	}
	var e Event
	if e.Size, err = whole("Size", fields[4], 10); err != nil {
		return err
	}
	if digits, hexadecimal := strings.CutPrefix(fields[5], "0x"); hexadecimal {
		e.Stream, err = whole("Stream", digits, 16)
	} else {
		e.Stream, err = whole("Stream", digits, 10)
	}
	if err != nil {
		return err
	}
	switch fields[2] {
	case "allocate":
		err = r.allocate(number, pointer, &e)
	case "free":
		e.Action = Free
		err = r.free(pointer, &e)
	case "allocate failure":
		e.Action = Failure
	default:
		err = fmt.Errorf("the action is %.40q, not allocate, free or allocate failure", fields[2])
	}
	r.trace.Events = append(r.trace.Events, e)
	return err
}

func (r *reader) allocate(number int, pointer uint64, e *Event) error {
	if pointer == 0 {
		if e.Size > 0 {
			return fmt.Errorf("an allocate of %d bytes at pointer 0", e.Size)
		}
		return nil
	}
	if earlier, live := r.live[pointer]; live {
		return fmt.Errorf("pointer %#x is allocated a second time; it is live since line %d", pointer, earlier.line)
	}
	r.trace.Blocks++
	e.Block = uint32(r.trace.Blocks)
	r.live[pointer] = allocation{e.Block, e.Size, number}
	return nil
}

func (r *reader) free(pointer uint64, e *Event) error {
	if pointer == 0 {
		return nil
	}
	a, live := r.live[pointer]
	switch {
	case !live:
		return fmt.Errorf("a free of pointer %#x, which is not live", pointer)
	case e.Size != 0 && e.Size != a.size:
		return fmt.Errorf("a free of %d bytes at pointer %#x, of which line %d allocated %d", e.Size, pointer, a.line,
			a.size)
	}
	delete(r.live, pointer)
	e.Block, e.Size = a.block, a.size
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
