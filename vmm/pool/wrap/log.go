package wrap

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"tms/vmm/pool"
)

// Log is a pool that writes down what is done with it, in the CSV format of RMM's
// logging_resource_adaptor, which RMM's replay benchmark and its viewers read: a header, then a line for
// each block that is made, freed or refused. Thread is the kernel's number, Time the local time to the
// microsecond, Pointer and Stream are in hexadecimal, Size is what was asked for.
//
// Lines are in an order in which the calls can have happened: a block is freed before it is made again,
// whatever threads do. Nothing is written where nothing happened: size 0, address 0, an address that was
// refused. Destroy writes a free for each block that it ends.
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
	l.write([]byte("Thread,Time,Action,Pointer,Size,Stream\n"))
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

func (l *Log) record(action string, address uintptr, r request) {
	l.line = fmt.Appendf(l.line[:0], "%d,%s,%s,%#x,%d,%#x\n", syscall.Gettid(),
		time.Now().Format("15:04:05.000000"), action, address, r.size, uintptr(r.stream))
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
		l.record("allocate failure", 0, r)
	case block.Address != 0:
		l.live[block.Address] = r
		l.record("allocate", block.Address, r)
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
	l.record("free", address, l.live[address])
	delete(l.live, address)
	return nil
}

// Destroy is pool.Pool.Destroy.
func (l *Log) Destroy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.Pool.Destroy()
	for _, address := range slices.Sorted(maps.Keys(l.live)) {
		l.record("free", address, l.live[address])
	}
	l.live = map[uintptr]request{}
	return err
}
