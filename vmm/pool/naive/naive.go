// Package naive asks the source for every block and gives each back at once, as the first approach of the text on
// allocators for PyTorch does with cudaMalloc and cudaFree. It is the baseline for the other kinds.
package naive

import (
	"errors"
	"slices"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/ledger"
)

// Pool is a pool.Pool; the zero value is not usable.
type Pool struct {
	ledger.Base
	ledger  *ledger.Ledger[struct{}]
	refused []pool.Block // that Destroy ended, and the source did not take back
}

type block = ledger.Block[struct{}]

// New makes an empty pool without options. It ignores streams: the source's Free waits. Errors: pool.ErrOption.
func New(source pool.Source, options *pool.Options) (*Pool, error) {
	if err := options.Err(); err != nil {
		return nil, err
	}
	p := &Pool{ledger: ledger.New[struct{}]("naive", source)}
	p.Hook(p.ledger, ledger.Hooks{Malloc: p.malloc, Free: p.free, Trim: p.trim, End: p.end})
	return p, nil
}

// malloc is pool.Pool.Malloc. A block has the requested size.
func (p *Pool) malloc(size uint64, _ pool.Stream) (pool.Block, error) {
	address, err := p.ledger.Allocate(size)
	if err != nil {
		return pool.Block{}, p.ledger.Refuse(size, err, "free something, or ask for less")
	}
	return p.ledger.Enter(address, block{Requested: size, Size: size}), nil
}

// free is pool.Pool.Free. A block that the source refuses stays live, and the error is the source's.
func (p *Pool) free(address uintptr) error {
	b, err := p.ledger.Find(address)
	if err != nil {
		return err
	}
	if err := p.ledger.Free(address, b.Size); err != nil {
		return err
	}
	_, err = p.ledger.Remove(address)
	return err
}

func (p *Pool) end() {
	p.ledger.Empty(func(address uintptr, b block) {
		p.refused = append(p.refused, pool.Block{Address: address, Size: b.Size})
	})
}

// trim gives back what the source refused in Destroy; nothing else is ever idle.
func (p *Pool) trim() (freed uint64, err error) {
	p.refused = slices.DeleteFunc(p.refused, func(b pool.Block) bool {
		failed := p.ledger.Free(b.Address, b.Size)
		if failed == nil {
			freed += b.Size
		}
		err = errors.Join(err, failed)
		return failed == nil
	})
	return freed, err
}
