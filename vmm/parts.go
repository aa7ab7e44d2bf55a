package vmm

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"tms/internal/aid/guard"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/store"
)

// parts say what a backup has of a segment, and what becomes of the rest.
type parts struct {
	saved store.Ranges // contents have these, one after the other
	zero  store.Ranges // blocks of the content hash, which are filled with zeros again
	lost  store.Ranges // unspecified after a resume
}

func (s *segment) backupSpan() store.Span {
	return store.Span{Address: s.address, Size: s.length()}
}

// reachable returns where the segment's device reaches its contents.
func (s *segment) reachable() store.Span {
	return store.Span{Address: cmp.Or(s.outcome.aside, s.address), Size: s.length()}
}

func (s *segment) all() store.Ranges { return store.Ranges{{Size: s.length()}} }

// back returns the parts of a segment that a resume brings back, and the parts that it does not.
func (s *segment) back() parts {
	switch {
	case s.held:
		return parts{}
	case s.contents == nil || !s.current:
		return parts{lost: s.all()}
	case s.parts == nil:
		return parts{saved: s.all()}
	}
	return *s.parts
}

// worthKeeping returns the parts of the segment that a pause to host memory keeps, given its sums if there are any, or
// nil if the pause keeps all; sparse ones have no blocks of zeros.
func (s *segment) worthKeeping(sums []digest.Sum, sparse bool) *parts {
	p := &parts{lost: s.dead}
	if sparse && sums != nil {
		p.zero = blocks(s.length(), func(block int) bool { return sums[block] == digest.Sum{} }) // of any length
		p.lost = s.dead.Without(p.zero)
	} else if s.dead == nil {
		return nil
	}
	p.saved = s.all().Without(p.zero).Without(p.lost)
	return p
}

// blocks lists the wanted blocks of a size in bytes, and joins neighbours.
func blocks(size uint64, wanted func(block int) bool) store.Ranges {
	var list []store.Range
	for i := 0; uint64(i)*digest.BlockSize < size; i++ {
		if wanted(i) {
			list = append(list, blockOf(size, i))
		}
	}
	return store.Union(list)
}

func blockOf(size uint64, block int) store.Range {
	offset := uint64(block) * digest.BlockSize
	return store.Range{Offset: offset, Size: min(digest.BlockSize, size-offset)}
}

// loadHasher compiles the kernel of the content hash in the background, so that no pause waits for it. The caller
// holds e.mu.
func (e *Engine) loadHasher(d *device) {
	if d.hashing {
		return
	}
	d.hashing = true
	e.loading++
	go func() {
		_ = guard.Call(func() error { return e.hasher.Load(d.context) }) // a pause gets the error again
		e.mu.Lock()
		defer e.mu.Unlock()
		e.loading--
		e.settled.Broadcast()
	}()
}

// hash returns the sums of all segments with verify, else of those of which more than a block has contents worth
// keeping: of the incremental and sparse ones, or with sparse of all. It returns nil if no segment needs sums. A driver
// that cannot hash makes every pause a full one.
func (e *Engine) hash(b *batch, segments []*segment, verify, sparse bool) (map[*segment][]digest.Sum, error) {
	hashed := filter(segments, func(s *segment) bool {
		saves := s.dead == nil || s.length() > s.dead.Bytes()+digest.BlockSize
		return verify || saves && (s.incremental || s.sparse || sparse)
	})
	if len(hashed) == 0 {
		return nil, nil
	}
	spans := make([]digest.Span, len(hashed))
	for i, s := range hashed {
		spans[i] = digest.Span(s.reachable())
	}
	b.device.hashed.Store(true)
	sums, err := e.hasher.Sums(b.device.context, spans)
	if errors.Is(err, cuda.NotSupported) && !verify {
		e.cannotHash.Do(func() {
			e.process.Warn(fmt.Sprintf("incremental or sparse backup: every pause copies everything: %v", err))
		})
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	of := make(map[*segment][]digest.Sum, len(hashed))
	for i, s := range hashed {
		of[s] = sums[i]
	}
	return of, nil
}

// verify compares blocks of resumed segments, if all of the block comes back, with the sums taken before the pause.
func (e *Engine) verify(b *batch, resumed []*segment) error {
	restored := filter(resumed, func(s *segment) bool { return s.contents != nil && s.current && s.sums != nil })
	now, err := e.hash(b, restored, true, false)
	if err != nil {
		return err
	}
	for _, s := range restored {
		wrong := blocks(s.length(), func(i int) bool {
			block := store.Ranges{blockOf(s.length(), i)}
			return s.sums[i] != now[s][i] && block.Without(s.back().lost).Bytes() == block.Bytes()
		})
		if len(wrong) > 0 {
			return fmt.Errorf("%w: tag %q, segment %#x of %d bytes on device %d, block %d (bytes %d to %d); "+
				"it is still paused, with what was saved; if memory was overwritten while it was saved, free it and load "+
				"its contents again",
				ErrContents, s.tag.name, s.address, s.size, b.device.ordinal, wrong[0].Offset/digest.BlockSize,
				wrong[0].Offset, wrong[0].Offset+min(wrong[0].Size, digest.BlockSize))
		}
	}
	return nil
}

// fill writes a word into ranges of each segment, as far as they have whole words. (cuMemsetD32Async)
func (e *Engine) fill(b *batch, word uint32, of func(*segment) store.Ranges) error {
	if !slices.ContainsFunc(b.segments, func(s *segment) bool { return of(s) != nil }) {
		return nil
	}
	return e.driver.OnStream(b.device.context, func(stream cuda.Stream) error {
		for _, s := range b.segments {
			for _, r := range of(s) {
				begin, end := (r.Offset+3)&^3, (r.Offset+r.Size)&^3
				if begin >= end {
					continue
				}
				address := s.reachable().Address + uintptr(begin)
				if err := e.driver.MemsetD32Async(address, word, (end-begin)/4, stream); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// poisonWord is NaN in every floating-point format: of 16, 32 and 64 bits, and both of 8 bits. A resume fills memory
// with it whose contents were not kept, so that a silent use of lost contents shows.
const poisonWord = 0x7fff7fff

// zeroed lists what a resume fills with zeros.
func zeroed(s *segment) store.Ranges {
	if s.outcome.state == active { // makeRoom has
		return nil
	}
	return s.back().zero
}
