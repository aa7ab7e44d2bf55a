package bfc

import (
	"errors"
	"time"

	"tms/vmm/pool"
)

// retry tries again after each free, until patience ends.
func (p *Pool) retry(size uint64, err error) (block pool.Block, _ error) {
	expired := false
	timer := time.AfterFunc(p.patience, func() {
		p.Lock()
		defer p.Unlock()
		expired = true
		p.freed.Broadcast()
	})
	defer timer.Stop()
	for !expired && errors.Is(err, pool.ErrOutOfMemory) {
		p.freed.Wait()
		block, err = p.malloc(size)
	}
	return block, err
}
