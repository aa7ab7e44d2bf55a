package vmm

import "tms/vmm/backup"

// warm has a device's first memory with contents to keep copied to the host and back, before anybody has it: what
// the driver takes of the device for that, at the first time and for good (2 MiB, seen on driver 580), is taken
// here, not in a pause, when memory may be short, nor in a resume, which is to leave as much as there was. A
// failure says nothing: the pause meets it again.
func (e *Engine) warm(x *extent) {
	x.device.warmed.Do(func() {
		_ = e.host.Warm(x.device.job(), backup.Span{Address: x.address, Size: min(x.size, x.device.granularity)})
	})
}
