package chunks

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIndexAgainstModel(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var x index
	model := map[uintptr]Handle{}
	for step := range 200_000 {
		// Few enough addresses that many collide, and that removals leave holes among them.
		address := uintptr(random.IntN(3000)) << 8
		if h, there := model[address]; there {
			require.Equal(t, h, x.remove(address))
			delete(model, address)
		} else if step/20_000%2 == 0 || random.IntN(4) == 0 {
			model[address] = Handle(1 + step)
			x.enter(address, Handle(1+step))
		}
		require.Equal(t, len(model), x.count)
		stranger := uintptr(random.IntN(3000)) << 8
		if _, there := model[stranger]; !there {
			require.Equal(t, None, x.remove(stranger))
		}
	}
	for address, h := range model {
		require.Equal(t, h, x.remove(address))
	}
	require.Zero(t, x.count)
}

func TestIndexOfAddressZero(t *testing.T) {
	var x index
	require.Equal(t, None, x.remove(0))
	x.enter(256, 1)
	require.Equal(t, None, x.remove(0))
	x.enter(0, 2)
	require.Equal(t, Handle(2), x.remove(0))
	require.Equal(t, None, x.remove(0))
}
