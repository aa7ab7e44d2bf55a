package workload

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
