package paddle

import "tms/vmm/pool"

// huge is a live block above max_chunk: a segment of its own.
type huge struct {
	size, requested uint64
}

func (p *Pool) mallocHuge(size, requested uint64) (pool.Block, error) {
	address, err := p.table.Allocate(size)
	if err != nil {
		return pool.Block{}, err
	}
	p.huge[address] = huge{size, requested}
	p.hugeBytes += size
	p.table.CountMalloc(requested, size)
	return pool.Block{Address: address, Size: size}, nil
}

// freeHuge gives a block back to the source at once; when that refuses, the block stays live.
func (p *Pool) freeHuge(address uintptr, block huge) error {
	if err := p.table.Return(address, block.size); err != nil {
		return err
	}
	p.endOneHuge(address, block)
	return nil
}

func (p *Pool) endOneHuge(address uintptr, block huge) {
	delete(p.huge, address)
	p.hugeBytes -= block.size
	p.table.CountFree(block.requested, block.size)
}

// endHuge makes all huge blocks free segments.
func (p *Pool) endHuge() {
	for address, block := range p.huge {
		p.endOneHuge(address, block)
		p.list(p.table.Adopt(address, block.size))
	}
}
