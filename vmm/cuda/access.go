package cuda

import "slices"

// Access is who can use a mapping, one entry for each location.
type Access []AccessDesc

// Writable reports whether a device can read and write the memory.
func (a Access) Writable(device int) bool {
	return slices.Contains(a, AccessDesc{Location: OnDevice(device), Flags: AccessReadWrite})
}

// Set notes access that the driver has given, or is to give.
func (a *Access) Set(descs []AccessDesc) {
	for _, desc := range descs {
		at := slices.IndexFunc(*a, func(one AccessDesc) bool { return one.Location == desc.Location })
		if at < 0 {
			*a = append(*a, desc)
		} else {
			(*a)[at] = desc
		}
	}
}
