package ledger

import (
	"errors"
	"sync"

	"tms/vmm/pool"
)

// Base is what every kind embeds: its lock, and the calls of pool.Pool in which kinds differ by a hook only.
type Base struct {
	sync.Mutex
	account *Account
	trim    func() (uint64, error)
	end     func() error
	detail  func() any
}

// Hook sets what the kind does in these calls, under the lock. trim gives idle segments back; end ends all live blocks,
// before trim; detail returns Stats.Detail, and may be nil.
func (b *Base) Hook(account *Account, trim func() (uint64, error), end func() error, detail func() any) {
	b.account, b.trim, b.end, b.detail = account, trim, end, detail
}

// Trim is pool.Pool.Trim.
func (b *Base) Trim() (uint64, error) {
	b.Lock()
	defer b.Unlock()
	return b.trim()
}

// Stats is pool.Pool.Stats.
func (b *Base) Stats() pool.Stats {
	b.Lock()
	defer b.Unlock()
	stats := b.account.Stats()
	if b.detail != nil {
		stats.Detail = b.detail()
	}
	return stats
}

// ResetPeakStats is pool.Pool.ResetPeakStats.
func (b *Base) ResetPeakStats() {
	b.Lock()
	defer b.Unlock()
	b.account.ResetPeakStats()
}

// Destroy is pool.Pool.Destroy. What the source refuses is tried again by the next Trim or Destroy.
func (b *Base) Destroy() error {
	b.Lock()
	defer b.Unlock()
	err := b.end()
	_, refused := b.trim()
	return errors.Join(err, refused)
}
