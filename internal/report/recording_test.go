package report_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/report/trace"
)

const (
	mib  = 1 << 20
	zero = 1_700_000_000_000_000_000 // nanoseconds since 1970 at monotonic 0
)

// recording makes a file as preload/watch/recording.c does, and keeps account of its contents.
type recording struct {
	bytes.Buffer
	tags  map[string]uint64
	now   uint64
	sum   [3]uint64 // physical, live, backup, of all tags
	moves []change
}

// change has the sums from one moment on.
type change struct {
	at  uint64
	sum [3]uint64
}

func newRecording(pid uint32, command string) *recording {
	r := &recording{tags: map[string]uint64{}, now: 1e9}
	r.WriteString("TMSTRACE")
	for _, value := range []any{uint32(1), pid, uint64(0), uint64(zero), int64(0), [3]uint64{}} {
		_ = binary.Write(r, binary.LittleEndian, value)
	}
	r.text(0, 1, command)
	return r
}

func (r *recording) text(tag, other uint64, text string) {
	r.put(trace.Record{Kind: trace.Text, Tag: tag, Other: other, Size: uint64(len(text))})
	r.WriteString(text)
	r.Write(make([]byte, (64-len(text)%64)%64))
}

func (r *recording) put(record trace.Record) {
	record.Time = r.now
	_ = binary.Write(r, binary.LittleEndian, record)
}

func (r *recording) tag(name string) uint64 {
	if name == "" {
		return 0
	}
	if r.tags[name] == 0 {
		r.tags[name] = uint64(0x1000 + len(r.tags))
		r.text(r.tags[name], 0, name)
	}
	return r.tags[name]
}

func (r *recording) changed(physical, live, backup int64) {
	r.sum[0] += uint64(physical)
	r.sum[1] += uint64(live)
	r.sum[2] += uint64(backup)
	r.moves = append(r.moves, change{r.now, r.sum})
}

func (r *recording) malloc(address, size uint64, tag string) {
	flags := uint8(trace.FlagPausable)
	if tag == "" {
		flags = 0
	}
	r.put(trace.Record{Kind: trace.Made, Flags: flags, Thread: 7, Address: address, Size: size, Tag: r.tag(tag)})
	r.changed(int64(size), int64(size), 0)
}

func (r *recording) free(address, size uint64) {
	r.put(trace.Record{Kind: trace.Freed, Device: -1, Thread: 7, Address: address})
	r.changed(-int64(size), -int64(size), 0)
}

func (r *recording) write(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, r.Bytes(), 0o600))
	return path
}

// busy returns a recording of random allocations and frees, with pauses and resumes of a tag in between.
func busy(seed uint64, events, pauses int) (*recording, []uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	r := newRecording(uint32(1000+seed), "python busy.py </script>")
	tags := []string{"", "weights", "activations", "kv cache", "gradients", "optimizer"}
	const base, slot = 0x7f0000000000, 64 * mib
	live := make([]uint64, 4000) // sizes, by slot
	of := make([]string, len(live))
	free := len(live)
	var bytesPaused []uint64
	paused := func() {
		number := uint32(len(bytesPaused)) + 1
		held := uint64(0)
		for i, size := range live {
			if of[i] == "weights" {
				held += size
			}
		}
		figures := func(physical, host uint64) {
			r.put(trace.Record{Kind: trace.Figures, Tag: r.tag("weights"), Address: held, Size: physical, Stream: host})
		}
		operation := func(o trace.Operation) {
			r.now += 1e6
			r.put(trace.Record{Kind: trace.Begin, Flags: uint8(o), Thread: number, Tag: r.tag("weights")})
			took := uint64(20e6 + random.IntN(1e8))
			r.now += took
			if o == trace.Pause {
				figures(0, held)
				r.changed(-int64(held), 0, int64(held))
			} else {
				figures(held, 0)
				r.changed(int64(held), 0, -int64(held))
			}
			r.put(trace.Record{Kind: trace.End, Flags: uint8(o), Thread: number, Address: took, Size: held,
				Stream: held, Pool: took / 8, Tag: r.tag("weights"), Other: took / 2})
		}
		operation(trace.Pause)
		r.now += 5e8
		operation(trace.Resume)
		bytesPaused = append(bytesPaused, held)
		r.now += 1000
	}
	for n := range events {
		r.now += uint64(1000 + random.IntN(20000))
		if pauses > 0 && n%(events/pauses) == events/pauses-1 {
			paused()
		}
		i := random.IntN(len(live))
		if live[i] == 0 {
			live[i], of[i] = uint64(1+random.IntN(slot)), tags[random.IntN(len(tags))]
			r.malloc(base+uint64(i)*slot, live[i], of[i])
			free--
		} else {
			r.free(base+uint64(i)*slot, live[i])
			live[i] = 0
		}
	}
	return r, bytesPaused
}
