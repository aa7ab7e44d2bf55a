package vmm

import (
	"errors"
	"fmt"

	"tms/internal/guard"
	"tms/vmm/cuda"
	"tms/vmm/digest"
	"tms/vmm/store"
)

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

// hash returns the sums of all segments with verify, else of the incremental and sparse ones of which more than a block
// has contents worth keeping, or nil if no segment needs sums. A driver that cannot hash makes every pause a full one.
func (e *Engine) hash(b *batch, segments []*segment, verify bool) (map[*segment][]digest.Sum, error) {
	hashed := filter(segments, func(s *segment) bool {
		saves := s.dead == nil || s.length() > s.dead.Bytes()+digest.BlockSize
		return verify || saves && (s.incremental || s.sparse)
	})
	if len(hashed) == 0 {
		return nil, nil
	}
	spans := make([]digest.Span, len(hashed))
	for i, s := range hashed {
		spans[i] = digest.Span(b.span(s))
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

// verify compares blocks of resumed segments, if all of the block comes back, with the sums taken before the pause.
func (e *Engine) verify(b *batch, resumed []*segment) error {
	restored := filter(resumed, func(s *segment) bool { return s.contents != nil && s.current && s.sums != nil })
	now, err := e.hash(b, restored, true)
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
