package fleet

import (
	"sync"

	"tms/internal/machine/nvml"
)

// NVML opens NVML once: that takes a second where no process uses a device.
var NVML = sync.OnceValues(nvml.Open)

// GPUs returns the GPUs that NVML shows. Errors: nvml.ErrUnavailable, wrapped; an error for GPUs that do not answer,
// beside which GPUs returns the other GPUs.
func GPUs() ([]nvml.Device, error) {
	library, err := NVML()
	if err != nil {
		return nil, err
	}
	return library.Devices()
}
