package kinds_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Step is a malloc of Size bytes into Slot, or, if Size is 0, the free of Slot.
type Step struct {
	Slot uint32
	Size uint64
}

// Training has the requests of a transformer's training.
type Training struct {
	Setup []Step // parameters and optimizer state, which stay
	Step  []Step // one iteration: forward, backward, optimizer; frees all its blocks
	Slots int
}

type recorder struct {
	steps []Step
	slots uint32
}

func (r *recorder) malloc(elements uint64) uint32 {
	r.steps = append(r.steps, Step{r.slots, elements * 2}) // half precision
	r.slots++
	return r.slots - 1
}

func (r *recorder) free(slots ...uint32) {
	for _, slot := range slots {
		r.steps = append(r.steps, Step{Slot: slot})
	}
}

func (r *recorder) temporary(elements uint64) { r.free(r.malloc(elements)) }

func (r *recorder) cut() []Step {
	steps := r.steps
	r.steps = nil
	return steps
}

// NewTraining returns the sequence of a GPT-like model: activations live from the forward to the backward pass of their
// layer; workspaces and gradients of activations come and go.
func NewTraining(layers int, hidden, tokens, vocabulary uint64) Training {
	var r recorder
	square := hidden * hidden
	weights := []uint64{3 * square, square, 4 * square, 4 * square, hidden, hidden, 3 * hidden, 4 * hidden}
	for range layers {
		for _, elements := range weights {
			r.malloc(elements)     // weight
			r.malloc(elements)     // gradient
			r.malloc(4 * elements) // two moments in single precision
		}
	}
	r.malloc(vocabulary * hidden)
	t := Training{Setup: r.cut()}

	saved := make([][]uint32, layers)
	for l := range saved {
		norm, qkv, statistics := r.malloc(tokens*hidden), r.malloc(3*tokens*hidden), r.malloc(tokens*32)
		r.temporary(tokens * hidden) // workspace of the attention
		attention := r.malloc(tokens * hidden)
		projected := r.malloc(tokens * hidden)
		mask := r.malloc(tokens * hidden / 2)
		norm2, up := r.malloc(tokens*hidden), r.malloc(4*tokens*hidden)
		activated := r.malloc(4 * tokens * hidden)
		down := r.malloc(tokens * hidden)
		r.temporary(tokens)
		r.free(projected)
		saved[l] = []uint32{norm, qkv, statistics, attention, mask, norm2, up, activated, down}
	}
	logits := r.malloc(tokens * vocabulary)
	r.temporary(tokens * vocabulary)
	r.temporary(tokens)
	gradient := r.malloc(tokens * hidden)
	r.free(logits)
	for l := layers - 1; l >= 0; l-- {
		for i := len(saved[l]) - 1; i >= 0; i-- {
			next := r.malloc(tokens * hidden << (i % 3))
			if i%2 == 0 {
				r.temporary(weights[i%len(weights)]) // gradient of a weight, before its addition
			}
			r.free(saved[l][i], gradient)
			gradient = next
		}
	}
	r.free(gradient)
	for range layers {
		for _, elements := range weights {
			r.temporary(2 * elements)
			r.temporary(1)
		}
	}
	t.Step = r.cut()
	t.Slots = int(r.slots)
	return t
}

func TestAnIterationFreesAllThatItMakes(t *testing.T) {
	training := NewTraining(3, 64, 128, 1000)
	live := map[uint32]bool{}
	run := func(steps []Step) {
		for _, s := range steps {
			require.Less(t, int(s.Slot), training.Slots)
			require.Equal(t, s.Size == 0, live[s.Slot], "slot %d", s.Slot)
			if live[s.Slot] = s.Size > 0; s.Size == 0 {
				delete(live, s.Slot)
			}
		}
	}
	run(training.Setup)
	parameters := len(live)
	require.Equal(t, len(training.Setup), parameters)
	run(training.Step)
	run(training.Step)
	require.Len(t, live, parameters)
}
