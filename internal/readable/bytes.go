// Package readable writes numbers and text for people, and for terminals.
package readable

import "fmt"

// Bytes writes a number of bytes: 512 bytes, 1.50 GiB.
func Bytes(size uint64) string {
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
