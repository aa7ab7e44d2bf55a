package caching

import "errors"

// collecting reports whether there is garbage collection. A block's age is the number of searches since it became free;
// its pool's clock counts them.
func (p *Pool) collecting() bool { return p.limited && p.threshold > 0 }

// collect gives old segments back if the pool holds more than the threshold's part of the allowed memory. It takes
// those of at least the average age, then again with the average of the rest, until the excess is gone. It never waits,
// and skips the small pool.
func (p *Pool) collect() (err error) {
	if !p.collecting() {
		return nil
	}
	target := int64(p.threshold * float64(p.allowed))
	if p.all(reservedBytes).Current <= target {
		return nil
	}
	blocks := p.whole(&p.largePool)
	age := uint64(0)
	for _, h := range blocks {
		age += p.largePool.clock - p.at(h).Own.born
	}
	for len(blocks) > 0 && p.all(reservedBytes).Current > target {
		count, sum := uint64(len(blocks)), age
		younger := blocks[:0]
		for _, h := range blocks {
			own := p.largePool.clock - p.at(h).Own.born
			if own*count < sum {
				younger = append(younger, h)
				continue
			}
			age -= own
			err = errors.Join(err, p.release(h))
		}
		blocks = younger
	}
	return err
}
