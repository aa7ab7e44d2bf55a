package caching

import (
	"math/rand/v2"

	"tms/vmm/pool"
)

// step is a malloc of size bytes into a slot, or, if size is 0, the slot's free.
type step struct {
	slot uint32
	size uint64
}

// sequence is a recorder of what a program asks for.
type sequence struct {
	steps []step
	slots uint32
}

func (s *sequence) malloc(size uint64) uint32 {
	s.slots++
	s.steps = append(s.steps, step{s.slots - 1, size})
	return s.slots - 1
}

func (s *sequence) free(slots ...uint32) {
	for _, slot := range slots {
		s.steps = append(s.steps, step{slot: slot})
	}
}

// training is what a transformer's training allocates in the order PyTorch's eager mode does: weights
// and the optimizer's state stay; each iteration makes activations going forward, frees them going
// back, with temporaries around every operator, and steps the optimizer. The sequence length varies
// from batch to batch, as it does with text. It returns the calls of the start and of the iterations.
func training(layers, iterations int) (start, steady []step) {
	const hidden, heads, vocabulary, micro = 1024, 16, 32000, 4
	random := rand.New(rand.NewPCG(7, 1))
	w := &sequence{}
	parameters := []uint64{vocabulary * hidden * 2}
	for range layers {
		for _, n := range []uint64{3 * hidden * hidden, 3 * hidden, hidden * hidden, hidden, 4 * hidden * hidden,
			4 * hidden, 4 * hidden * hidden, hidden, hidden, hidden, hidden, hidden} {
			parameters = append(parameters, 2*n)
		}
	}
	for _, size := range parameters {
		w.malloc(size) // the weight
		w.malloc(2 * size)
		w.malloc(2 * size) // Adam's moments in float32
	}
	start, w.steps = w.steps, nil

	for range iterations {
		gradients := make([]uint32, 0, len(parameters))
		tokens := micro * uint64(384+64*random.IntN(10))
		length := tokens / micro
		batch := w.malloc(tokens * 8)
		stream := w.malloc(tokens * hidden * 2)
		var saved [][]uint32
		for range layers {
			var keep []uint32
			norm := func() { // keeps its output, mean and deviation
				keep = append(keep, w.malloc(tokens*hidden*2), w.malloc(tokens*4), w.malloc(tokens*4))
			}
			norm()
			qkv := w.malloc(3 * tokens * hidden * 2)
			workspace := w.malloc(8 << 20)
			scores := w.malloc(micro * heads * length * length * 2)
			mask := w.malloc(micro * heads * length * length)
			w.free(workspace)
			probabilities := w.malloc(micro * heads * length * length * 2)
			w.free(scores)
			attention := w.malloc(tokens * hidden * 2)
			projected := w.malloc(tokens * hidden * 2)
			dropout := w.malloc(tokens * hidden)
			keep = append(keep, qkv, mask, probabilities, attention, dropout)
			sum := w.malloc(tokens * hidden * 2)
			w.free(projected)
			keep = append(keep, sum)
			norm()
			up := w.malloc(4 * tokens * hidden * 2)
			activated := w.malloc(4 * tokens * hidden * 2)
			down := w.malloc(tokens * hidden * 2)
			next := w.malloc(tokens * hidden * 2)
			w.free(down)
			keep = append(keep, up, activated, stream)
			stream = next
			saved = append(saved, keep)
		}
		logits := w.malloc(tokens * vocabulary * 2)
		loss := w.malloc(4)
		probabilities := w.malloc(tokens * vocabulary * 4)
		w.free(logits)
		gradient := w.malloc(tokens * hidden * 2)
		w.free(probabilities, loss)
		for layer := layers - 1; layer >= 0; layer-- {
			keep := saved[layer]
			for i := len(keep) - 1; i >= 0; i-- {
				temporary := w.malloc(tokens * hidden * 2)
				scratch := w.malloc(512 * uint64(1+random.IntN(64)))
				w.free(gradient, scratch, keep[i])
				gradient = temporary
			}
			for _, size := range parameters[1+12*layer : 13+12*layer] {
				gradients = append(gradients, w.malloc(size))
			}
		}
		w.free(gradient, stream, batch)
		norms := make([]uint32, 0, len(gradients))
		for range gradients {
			norms = append(norms, w.malloc(4))
		}
		w.free(norms...)
		w.free(gradients...)
	}
	return start, w.steps
}

// player runs a sequence.
type player struct {
	pool      pool.Pool
	addresses []uintptr
}

func (r *player) play(steps []step) error {
	for _, s := range steps {
		if int(s.slot) >= len(r.addresses) {
			r.addresses = append(r.addresses, make([]uintptr, s.slot+1)...)
		}
		if s.size == 0 {
			if err := r.pool.Free(r.addresses[s.slot]); err != nil {
				return err
			}
			continue
		}
		b, err := r.pool.Malloc(s.size, 0)
		if err != nil {
			return err
		}
		r.addresses[s.slot] = b.Address
	}
	return nil
}
