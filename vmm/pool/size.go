package pool

import "fmt"

// MostBytes is what no source can ever give: no processor with CUDA has a larger address space. Options
// give no more, and below it sizes can be rounded up, doubled and added to one another without overflow.
const MostBytes = 1 << 57

// Readable writes a number of bytes as people read it: 512 bytes, 1.50 GiB.
func Readable(size uint64) string {
	if size < 1<<10 {
		return fmt.Sprintf("%d bytes", size)
	}
	value, unit := float64(size)/(1<<10), 0
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= 1<<10 && unit < len(units)-1 {
		value /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.2f %s", value, units[unit])
}
