package kinds_test

import (
	"testing"

	"tms/vmm/pool"
	"tms/vmm/pool/kinds"
	"tms/vmm/pool/streams"
)

// eventful is a Source with events, of streams that are done with their work at once.
type eventful struct {
	*Source
	last pool.Event
}

func (s *eventful) Record(pool.Stream) (pool.Event, error) {
	s.last++
	return s.last, nil
}

func (*eventful) Query(pool.Event) (bool, error)        { return true, nil }
func (*eventful) Synchronize(pool.Event) error          { return nil }
func (*eventful) Destroy(pool.Event) error              { return nil }
func (*eventful) Memory() (free, all uint64, err error) { return capacity, capacity, nil }

func TestEveryKindConformsWithAPoolForEachStream(t *testing.T) {
	for _, traits := range []Traits{
		{Kind: "naive", Alignment: 512, Direct: 1},
		{Kind: "freelist", Alignment: 512, Largest: 5 << 30},
		{Kind: "buddy", Alignment: 512, Largest: 4 << 30},
		{Kind: "slab", Alignment: 256},
		{Kind: "caching", Alignment: 512},
		{Kind: "bfc", Alignment: 256},
		{Kind: "paddle", Alignment: 256, Direct: 1<<30 - 63},
	} {
		t.Run(traits.Kind, func(t *testing.T) {
			traits.StreamOrdered = traits.Kind != "naive" // whose frees wait for the device
			conforms(t, func(under pool.Source) (pool.Pool, error) {
				return streams.New(&eventful{Source: under.(*Source)}, func(source pool.Source) (pool.Pool, error) {
					return kinds.New(traits.Kind, source, nil)
				})
			}, traits)
		})
	}
}
