package kinds_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/vmm/pool"
)

// flawed is a correct pool. A test replaces its methods.
type flawed struct {
	pool.Pool
	malloc  func(uint64, pool.Stream) (pool.Block, error)
	free    func(uintptr) error
	trim    func() (uint64, error)
	stats   func() pool.Stats
	destroy func() error
}

func (f *flawed) Malloc(size uint64, stream pool.Stream) (pool.Block, error) {
	return f.malloc(size, stream)
}
func (f *flawed) Free(address uintptr) error { return f.free(address) }
func (f *flawed) Trim() (uint64, error)      { return f.trim() }
func (f *flawed) Stats() pool.Stats          { return f.stats() }
func (f *flawed) Destroy() error             { return f.destroy() }

// interpret runs a random program against a pool, made flawed by flaw.
func interpret(t *testing.T, flaw func(*flawed, *Source)) error {
	t.Helper()
	source := NewSource(1 << 30)
	right, err := construct("buddy", source, "capacity=64MiB")
	require.NoError(t, err)
	f := &flawed{right, right.Malloc, right.Free, right.Trim, right.Stats, right.Destroy}
	flaw(f, source)
	traits := Traits{Kind: "buddy", Alignment: 512, Largest: 64 << 20}
	operations := make([]byte, 4000)
	random := rand.NewChaCha8([32]byte{})
	_, _ = random.Read(operations)
	return Interpret(Check(f, source, traits), operations)
}

func TestARightPoolHasNoViolation(t *testing.T) {
	require.NoError(t, interpret(t, func(*flawed, *Source) {}))
}

func TestFlawsAreFound(t *testing.T) {
	// result changes what a right malloc of size bytes returns.
	result := func(change func(size uint64, b *pool.Block, err *error, source *Source)) func(*flawed, *Source) {
		return func(f *flawed, source *Source) {
			f.malloc = func(size uint64, stream pool.Stream) (pool.Block, error) {
				b, err := f.Pool.Malloc(size, stream)
				change(size, &b, &err, source)
				return b, err
			}
		}
	}
	alter := func(change func(*pool.Block)) func(*flawed, *Source) {
		return result(func(size uint64, b *pool.Block, err *error, _ *Source) {
			if *err == nil && size > 0 {
				change(b)
			}
		})
	}
	failWith := func(wrong error) func(*flawed, *Source) {
		return result(func(_ uint64, _ *pool.Block, err *error, _ *Source) {
			if *err != nil {
				*err = wrong
			}
		})
	}
	failed := errors.New("failed")
	for _, c := range []struct {
		name  string
		found string
		flaw  func(*flawed, *Source)
	}{
		{"misaligned", "not aligned to 512", alter(func(b *pool.Block) { b.Address += 8; b.Size -= 8 })},
		{"too small", "a block of ", alter(func(b *pool.Block) { b.Size /= 4 })},
		{"outside a segment", "in no segment", alter(func(b *pool.Block) { b.Address += 1 << 40 })},
		{"before all segments", "in no segment", alter(func(b *pool.Block) { b.Address = 512 })},
		{"past the end of a segment", "in no segment", alter(func(b *pool.Block) { b.Size = 1 << 27 })},
		{"miscounted size", "the statistics are", alter(func(b *pool.Block) { b.Size++ })},
		{"size 0 gets memory", "size 0 got a block", func(f *flawed, _ *Source) {
			f.malloc = func(size uint64, stream pool.Stream) (pool.Block, error) {
				return f.Pool.Malloc(max(size, 1), stream)
			}
		}},
		{"the same block twice", "overlap a live block", func(f *flawed, _ *Source) {
			var last pool.Block
			f.malloc = func(size uint64, stream pool.Stream) (pool.Block, error) {
				if last.Size >= size && size > 0 {
					return last, nil
				}
				var err error
				last, err = f.Pool.Malloc(size, stream)
				return last, err
			}
		}},
		{"a block beside an error", "a block beside the error",
			result(func(size uint64, b *pool.Block, err *error, _ *Source) {
				if *err != nil {
					b.Size = size
				}
			})},
		{"an error of its own", "not ErrTooLarge", failWith(failed)},
		{"an error instead of the source's", "not what the source answered",
			result(func(_ uint64, _ *pool.Block, err *error, source *Source) {
				if source.Refuse != nil && errors.Is(*err, source.Refuse) {
					*err = failed
				}
			})},
		{"all is too large", "sizes up to 67108864 are served", failWith(pool.ErrTooLarge)},
		{"out of memory by itself", "the source had not refused", func(f *flawed, source *Source) {
			f.malloc = func(size uint64, stream pool.Stream) (pool.Block, error) {
				if size > 1<<20 && size < 64<<20 && source.Refuse == nil {
					return pool.Block{}, pool.ErrOutOfMemory
				}
				return f.Pool.Malloc(size, stream)
			}
		}},
		{"serves what is too large", "is the largest size", func(f *flawed, _ *Source) {
			f.malloc = func(size uint64, stream pool.Stream) (pool.Block, error) {
				b, err := f.Pool.Malloc(min(size, 64<<20), stream)
				if err == nil && size > 64<<20 {
					b.Size = size
				}
				return b, err
			}
		}},
		{"refuses address 0", "address 0 is ignored", func(f *flawed, _ *Source) {
			f.free = func(a uintptr) error { return f.Pool.Free(max(a, 1)) }
		}},
		{"frees anything", "although not live", func(f *flawed, _ *Source) {
			f.free = func(a uintptr) error { _ = f.Pool.Free(a); return nil }
		}},
		{"frees what is around an address", "although not live", func(f *flawed, _ *Source) {
			f.free = func(a uintptr) error { return f.Pool.Free(a &^ 511) }
		}},
		{"refuses to free", "refused, although live", func(f *flawed, _ *Source) {
			f.free = func(a uintptr) error {
				if a == 0 {
					return nil
				}
				return fmt.Errorf("%w: %#x", pool.ErrInvalidAddress, a)
			}
		}},
		{"does not say what it refused to free", "does not name the address", func(f *flawed, _ *Source) {
			f.free = func(a uintptr) error {
				err := f.Pool.Free(a)
				if err != nil {
					err = pool.ErrInvalidAddress
				}
				return err
			}
		}},
		{"changes by a refused free", "nothing was live there", func(f *flawed, _ *Source) {
			refused := 0
			f.free = func(a uintptr) error {
				err := f.Pool.Free(a)
				if err != nil {
					refused++
				}
				return err
			}
			f.stats = func() pool.Stats {
				stats := f.Pool.Stats()
				stats.Detail = refused
				return stats
			}
		}},
		{"trims nothing", "Trim: kept the segment", func(f *flawed, _ *Source) {
			f.trim = func() (uint64, error) { return 0, nil }
		}},
		{"trims what is live", "the statistics are", func(f *flawed, source *Source) {
			f.trim = func() (uint64, error) {
				_, before := source.Held()
				err := f.Pool.Destroy()
				_, after := source.Held()
				return before - after, err
			}
		}},
		{"miscounts what it trimmed", "Trim: returned 1, but gave back 0", func(f *flawed, _ *Source) {
			f.trim = func() (uint64, error) { n, err := f.Pool.Trim(); return n + 1, err }
		}},
		{"hides a refused trim", "Trim: no error", func(f *flawed, _ *Source) {
			f.trim = func() (uint64, error) { n, _ := f.Pool.Trim(); return n, nil }
		}},
		{"fails to trim", "Trim: the source refused nothing", func(f *flawed, _ *Source) {
			f.trim = func() (uint64, error) { n, _ := f.Pool.Trim(); return n, failed }
		}},
		{"destroys nothing", "Destroy: kept the segment", func(f *flawed, _ *Source) {
			f.destroy = func() error { return nil }
		}},
		{"hides a refused destroy", "Destroy: no error", func(f *flawed, _ *Source) {
			f.destroy = func() error { _ = f.Pool.Destroy(); return nil }
		}},
		{"gives back what it has not", "was never a segment", func(f *flawed, source *Source) {
			f.trim = func() (uint64, error) {
				_ = source.Free(512, 512)
				return f.Pool.Trim()
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { require.ErrorContains(t, interpret(t, c.flaw), c.found) })
	}
}

// TestEveryCounterIsCompared is off by one in each field of Stats in turn.
func TestEveryCounterIsCompared(t *testing.T) {
	for i := range reflect.TypeFor[pool.Stats]().NumField() {
		field := reflect.TypeFor[pool.Stats]().Field(i)
		if field.Name == "Detail" {
			continue
		}
		t.Run(field.Name, func(t *testing.T) {
			err := interpret(t, func(f *flawed, _ *Source) {
				f.stats = func() pool.Stats {
					stats := f.Pool.Stats()
					value := reflect.ValueOf(&stats).Elem().Field(i)
					if value.Kind() == reflect.String {
						value.SetString("other")
					} else {
						value.SetUint(value.Uint() + 1)
					}
					return stats
				}
			})
			require.ErrorContains(t, err, "New: ")
		})
	}
}
