package wrap

import (
	"io"
	"maps"
	"slices"
	"sync"

	"tms/internal/trace"
	"tms/vmm/pool"
)

// Log is a pool that writes down what is done with it, as package trace says. Destroy writes a free for each
// block that it ends.
type Log struct {
	pool.Pool
	mu   sync.Mutex
	to   io.Writer
	err  error
	line []byte
	live map[uintptr]request
}

type request struct {
	size   uint64
	stream pool.Stream
}

// NewLog makes the log of an empty pool and writes the header. The writer gets one Write for a line; it
// need not be safe for several threads.
func NewLog(p pool.Pool, to io.Writer) *Log {
	l := &Log{Pool: p, to: to, live: map[uintptr]request{}}
	l.write([]byte(trace.Header + "\n"))
	return l
}

// Err returns the writer's first error. After it nothing more is written, but the pool works on.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *Log) write(line []byte) {
	if l.err == nil {
		_, l.err = l.to.Write(line)
	}
}

func (l *Log) record(action trace.Action, address uintptr, r request) {
	l.line = trace.AppendLine(l.line[:0], action, uint64(address), r.size, uint64(r.stream))
	l.write(l.line)
}

// Malloc is pool.Pool.Malloc.
func (l *Log) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	r := request{size, stream}
	block, err := l.Pool.Malloc(size, stream)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil:
		l.record(trace.Failure, 0, r)
	case block.Address != 0:
		l.live[block.Address] = r
		l.record(trace.Allocate, block.Address, r)
	}
	return block, err
}

// Free is pool.Pool.Free.
func (l *Log) Free(address uintptr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Pool.Free(address); err != nil || address == 0 {
		return err
	}
	l.record(trace.Free, address, l.live[address])
	delete(l.live, address)
	return nil
}

// Destroy is pool.Pool.Destroy.
func (l *Log) Destroy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Pool.Destroy()
	for _, address := range slices.Sorted(maps.Keys(l.live)) {
		l.record(trace.Free, address, l.live[address])
	}
	l.live = map[uintptr]request{}
	return err
}
