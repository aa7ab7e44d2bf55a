package tree

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/machine/nvml"
	"tms/internal/snapshot"
)

// A restore needs the driver's version, and each GPU by its UUID; other GPUs of the same model do not serve.
func TestWhatAMachineLacks(t *testing.T) {
	n := snapshot.Needs{Driver: "580.1", GPUs: []snapshot.GPU{{Model: "NVIDIA H200", UUID: "GPU-1"}}}
	one, other := nvml.Device{UUID: "GPU-1"}, nvml.Device{UUID: "GPU-2", Name: "NVIDIA H200"}
	require.NoError(t, lacks(n, "580.1", []nvml.Device{other, one}))
	require.ErrorContains(t, lacks(n, "580.1", []nvml.Device{other}), "needs the NVIDIA H200 GPU-1, which is not here")
	require.ErrorContains(t, lacks(n, "580.1", nil), "needs the NVIDIA H200 GPU-1, which is not here")
	require.ErrorContains(t, lacks(n, "580.2", []nvml.Device{one}), "driver 580.1, and this machine has 580.2")
}
