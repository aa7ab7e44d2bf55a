package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/machine/nvml"
)

// Which of NVML's figures belongs to a process, if process numbers are the driver's and if they may not be.
func TestWhoseFigureItIs(t *testing.T) {
	const pid = 40
	has := func(pid int, used uint64) nvml.Process { return nvml.Process{PID: pid, UsedBytes: used, Known: true} }
	gpu := func(processes ...nvml.Process) nvml.Device {
		return nvml.Device{UUID: "GPU-1", Name: "GPU", UsedBytes: 900, Processes: processes}
	}
	for _, c := range []struct {
		gpu         nvml.Device
		alone, same bool
		used, rest  uint64
		source      string
	}{
		{gpu(has(pid, 700), has(41, 100)), true, true, 700, 200, FromNVML},
		{gpu(has(pid, 700), has(41, 100)), false, false, 700, 200, FromNVML},
		{gpu(has(pid, 300), has(pid, 400)), false, true, 700, 200, FromNVML}, // on two parts of the device
		{gpu(has(pid, 400)), true, true, 400, 0, FromNVML},                   // memory came and went between
		{gpu(has(pid, 400)), true, false, 0, 0, Unmeasured},                  // another process's, with this number
		{gpu(nvml.Process{PID: pid}), true, true, 0, 0, Unmeasured},
		{gpu(has(7, 700)), true, false, 700, 200, FromAlone},
		{gpu(has(7, 400)), true, false, 0, 0, Unmeasured},
		{gpu(has(7, 700)), true, true, 0, 0, Unmeasured},
		{gpu(has(7, 700)), false, false, 0, 0, Unmeasured},
		{gpu(has(7, 700), has(8, 100)), true, false, 0, 0, Unmeasured},
		{gpu(), true, false, 900, 400, FromDevice},
		{gpu(), true, true, 0, 0, Unmeasured},
		{gpu(), false, false, 0, 0, Unmeasured},
	} {
		d := DeviceBytes{UUID: "GPU-1", NamedBytes: 500}
		d.measure(c.gpu, pid, c.alone, c.same)
		require.Equal(t, DeviceBytes{UUID: "GPU-1", NamedBytes: 500, UsedBytes: c.used, RestBytes: c.rest,
			Source: c.source}, d, c)
	}
}
