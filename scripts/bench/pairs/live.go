package main

import (
	"math/rand/v2"
	"time"

	"tms/vmm/pool"
)

// measured is the part of a pool.Pool that is.
type measured interface {
	Malloc(size uint64, stream pool.Stream) (pool.Block, error)
	Free(address uintptr) error
}

// live is a pool with many live blocks of 1 KiB to 1 MiB.
type live struct {
	pool   measured
	random *rand.Rand
	blocks []block
	among  int
	keep   bool
}

type block struct {
	address uintptr
	size    uint64
}

// fill fills an empty pool with count blocks, and replaces blocks until the pool is steady. Pairs will go to the first
// among blocks, picked by chance. Few blocks show what grows in the pool; all of them also show what the processor's
// caches miss. The malloc asks for another size than the free gave, or with keep for the same size, so that the freed
// block is the one that fits. Errors: the pool's.
func fill(p measured, count, among int, keep bool) (*live, error) {
	l := &live{pool: p, random: rand.New(rand.NewPCG(1, 2)), blocks: make([]block, count), among: among}
	for i := range l.blocks {
		if err := l.malloc(i, l.size()); err != nil {
			return nil, err
		}
	}
	_, err := l.time(max(2*among, 10_000))
	l.keep = keep
	return l, err
}

func (l *live) size() uint64 { return 1<<10 + l.random.Uint64N(1<<(10+l.random.IntN(11))) }

func (l *live) malloc(i int, size uint64) error {
	b, err := l.pool.Malloc(size, 0)
	l.blocks[i] = block{b.Address, size}
	return err
}

// time returns the mean time of count pairs of free and malloc, in nanoseconds. Errors: the pool's.
func (l *live) time(count int) (float64, error) {
	begin := time.Now()
	for range count {
		i := l.random.IntN(l.among)
		if err := l.pool.Free(l.blocks[i].address); err != nil {
			return 0, err
		}
		size := l.blocks[i].size
		if !l.keep {
			size = l.size()
		}
		if err := l.malloc(i, size); err != nil {
			return 0, err
		}
	}
	return float64(time.Since(begin).Nanoseconds()) / float64(count), nil
}
