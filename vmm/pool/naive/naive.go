// Package naive asks the source for every block and gives each back at once, as the first approach of the text on
// allocators for PyTorch does with cudaMalloc and cudaFree. It is the baseline for the other kinds.
package naive

import (
	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base[ledger.Block]
}

// New makes an empty pool without options. It ignores streams: the source's Free waits. Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (pool.Pool, error) {
	if err := options.Err(); err != nil {
		return nil, err
	}
	p := &Pool{}
	p.Open(ledger.NewOfBlocks("naive", source), ledger.Placement[ledger.Block]{Place: p.place, Reuse: p.reuse,
		Trim:   func() error { return nil }, // nothing is ever idle
		Advice: func(uint64) string { return "free something, or ask for less" }})
	return p, nil
}

// place makes a block of the requested size.
func (p *Pool) place(size uint64, _ pool.Stream) (pool.Block, error) {
	address, err := p.Ledger.Allocate(size)
	if err != nil {
		return pool.Block{}, err
	}
	return p.Ledger.Enter(address, ledger.Block{Requested: size, Size: size}, size, size), nil
}

func (p *Pool) reuse(address uintptr, b ledger.Block) error { return p.Ledger.Free(address, b.Size) }
