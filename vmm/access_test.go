package vmm_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/vmm"
	"tms/vmm/cuda"
)

// Two devices come into use at the same time, each by a thread of its own that grants it access: the second comes while
// the first is being granted. Neither is forgotten.
func TestDevicesComeIntoUseTogether(t *testing.T) {
	hermetic.Thorough(t)
	_, driver, engine := simulated(t, 3)
	address := malloc(t, engine, vmm.Request{Size: 2 * mib, Tag: "t"})
	use := func(device int) cuda.Context {
		context, err := driver.DevicePrimaryCtxRetain(cuda.Device(device))
		require.NoError(t, err)
		return context
	}
	contexts, second := []cuda.Context{use(1), 0}, make(chan error, 1)
	var calls atomic.Int64
	var over atomic.Bool
	defer at("cuMemSetAccess", func() error {
		if calls.Add(1) == 1 {
			contexts[1] = use(2)
			go func() {
				defer over.Store(true)
				second <- engine.Grant()
			}()
			for tries := 0; !over.Load() && tries < 100_000; tries++ { // it may have to wait for this one
				runtime.Gosched()
			}
		}
		return nil
	})()
	require.NoError(t, engine.Grant())
	require.NoError(t, <-second)
	for _, context := range contexts {
		require.NoError(t, driver.With(context, func() error {
			err := driver.MemcpyDtoDAsync(address+mib, address, mib, 0)
			if err == nil {
				err = driver.CtxSynchronize()
			}
			return err
		}))
	}
}
