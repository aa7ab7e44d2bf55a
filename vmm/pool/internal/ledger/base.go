package ledger

import (
	"sync"

	"tms/vmm/pool"
)

// Base has the lock, and those calls of pool.Pool in which kinds differ only by a hook. Every kind embeds it.
type Base struct {
	sync.Mutex
	account *Account
	trim    func() (uint64, error)
	end     func()
	detail  func() any
}

// Hook sets the kind's part of these calls, under the lock. trim gives idle segments back; end, before trim, ends all
// live blocks; detail returns Stats.Detail, and may be nil.
func (b *Base) Hook(account *Account, trim func() (uint64, error), end func(), detail func() any) {
	b.account, b.trim, b.end, b.detail = account, trim, end, detail
}

func (b *Base) Trim() (uint64, error) {
	b.Lock()
	defer b.Unlock()
	return b.trim()
}

func (b *Base) Stats() pool.Stats {
	b.Lock()
	defer b.Unlock()
	stats := b.account.Stats()
	if b.detail != nil {
		stats.Detail = b.detail()
	}
	return stats
}

func (b *Base) ResetPeakStats() {
	b.Lock()
	defer b.Unlock()
	b.account.ResetPeakStats()
}

// Destroy is pool.Pool.Destroy. The next Trim or Destroy tries again what the source refuses.
func (b *Base) Destroy() error {
	b.Lock()
	defer b.Unlock()
	b.end()
	_, err := b.trim()
	return err
}
