package control

import (
	"iter"

	"tms/vmm/stats"
)

// Tags yields the tags of a process, each with its device.
func (s *ProcessState) Tags() iter.Seq2[stats.Device, stats.Tag] {
	return func(yield func(stats.Device, stats.Tag) bool) {
		for _, d := range s.Stats.Devices {
			for _, tag := range d.Tags {
				if !yield(d, tag) {
					return
				}
			}
		}
	}
}

// Held returns the bytes of device memory that a pause of the process would free.
func (s *ProcessState) Held() (bytes uint64) {
	for _, tag := range s.Tags() {
		bytes += tag.PhysicalBytes
	}
	return bytes
}

// Paused returns the bytes that pauses have taken from the process, its own and mapped ones.
func (s *ProcessState) Paused() (bytes uint64) {
	for _, tag := range s.Tags() {
		bytes += tag.AllPaused()
	}
	return bytes
}

// Lost reports whether the driver can never give the process back.
func (s *ProcessState) Lost() bool { return s.Driver != nil && s.Driver.Lost != "" }
