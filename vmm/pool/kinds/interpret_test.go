package kinds_test

import (
	"errors"
	"fmt"

	"tms/vmm/pool"
)

var errSource = errors.New("the source fails at times")

// program reads operations from bytes; past their end it reads 0.
type program struct {
	rest  []byte
	pool  *Checked
	freed []uintptr // the last few
}

// Interpret runs bytes as a program over a pool, for fuzzing: mallocs of sizes over all scales, frees, invalid frees,
// Trim, Destroy, and a source that refuses for a while. At the end it frees everything and lets the pool give
// everything back. Any bytes are a program. It returns the first violation.
func Interpret(c *Checked, operations []byte) error {
	p := &program{rest: operations, pool: c}
	for len(p.rest) > 0 && c.Violation() == nil {
		at := len(operations) - len(p.rest)
		p.step()
		if err := c.Violation(); err != nil {
			return fmt.Errorf("operation at %d: %w", at, err)
		}
	}
	return p.finish()
}

func (p *program) next() byte {
	if len(p.rest) == 0 {
		return 0
	}
	b := p.rest[0]
	p.rest = p.rest[1:]
	return b
}

// step runs one operation: the low bits of its byte say which, the high bits how.
func (p *program) step() {
	operation := p.next()
	how := operation >> 4
	switch operation & 15 {
	case 0, 1, 2, 3, 4, 5, 6:
		// A power of two, up to 2^34, and a part of it, or a byte less.
		exponent, part := p.next()%35, uint64(p.next())
		_, _ = p.pool.Malloc((256+part)<<exponent>>8-uint64(how>>3), pool.Stream(how&3))
	case 7, 8, 9, 10, 11:
		p.free(p.chosen())
	case 12:
		if len(p.freed) > 0 {
			_ = p.pool.Free(p.freed[int(how)%len(p.freed)])
		}
	case 13:
		s := p.chosen()
		_ = p.pool.Free(uintptr(s.start + s.size*uint64(how)/15))
		_ = p.pool.Free(uintptr(s.start) + uintptr(how))
	case 14:
		_, _ = p.pool.Trim()
	case 15:
		p.source(how)
	}
}

func (p *program) source(how byte) {
	source := p.pool.source
	switch how {
	case 0, 1, 2:
		source.Refuse = pool.ErrOutOfMemory
	case 3:
		source.Refuse = errSource
	case 4, 5:
		source.RefuseFree = errSource
	case 6:
		_ = p.pool.Destroy()
	default:
		source.Refuse, source.RefuseFree = nil, nil
	}
}

// chosen returns a live block; the empty span: there is none.
func (p *program) chosen() span {
	live := p.pool.live
	i := int(p.next())
	if len(live) == 0 {
		return span{}
	}
	return live[i*len(live)/256]
}

func (p *program) free(s span) {
	if p.pool.Free(uintptr(s.start)) == nil && s.start != 0 {
		if len(p.freed) == 8 {
			p.freed = p.freed[1:]
		}
		p.freed = append(p.freed, uintptr(s.start))
	}
}

func (p *program) finish() error {
	c := p.pool
	c.source.Refuse, c.source.RefuseFree = nil, nil
	for last := len(c.live) - 1; last >= 0 && c.Violation() == nil; last-- {
		if err := c.Free(uintptr(c.live[last].start)); err != nil {
			return err
		}
	}
	if _, err := c.Trim(); err != nil {
		return err
	}
	if segments, bytes := c.source.Held(); segments > 0 {
		c.fail("in the end", "%d segments of %d bytes were not given back", segments, bytes)
	}
	return c.Violation()
}
