package caching

// age returns the searches since a free block was freed, which garbage collection counts.
func (p *Pool) age(address uintptr) uint64 {
	p.Lock()
	defer p.Unlock()
	for _, r := range p.table.Regions() {
		for h := r.First; h != none; h = p.at(h).Next {
			if b := p.at(h); b.Address == address {
				return p.listOf(b).pool.clock - b.Own.born
			}
		}
	}
	panic("no block starts there")
}

// resetSums sets the sums in Detail to 0. (torch.cuda.reset_accumulated_memory_stats)
func (p *Pool) resetSums() {
	p.Lock()
	defer p.Unlock()
	p.eachStat(func(s *stat) { s.Allocated, s.Freed = 0, 0 })
	p.retries, p.ooms = 0, 0
}
