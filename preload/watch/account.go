package watch

// #include "parts.h"
import "C"

import (
	"slices"
	"unsafe"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// Devices lists the devices on which the process has the context that the runtime uses; without a driver there are
// none.
func Devices(driver *cuda.Driver) []control.Device {
	found := []control.Device{}
	if driver == nil {
		return found
	}
	count, _ := driver.DeviceCount()
	for ordinal := range count {
		device, err := driver.DeviceGet(ordinal)
		if err != nil {
			continue
		}
		if active, err := driver.DevicePrimaryCtxGetState(device); err == nil && active {
			uuid, err := driver.DeviceUUID(device)
			if err != nil {
				uuid = ""
			}
			found = append(found, control.Device{Device: ordinal, UUID: uuid})
		}
	}
	return found
}

// Account returns what CUDA itself has given to each library (account.c), or nil without TMS_ACCOUNT. It asks the
// driver about the devices' pools and graphs.
func Account(driver *cuda.Driver, devices []control.Device) *control.Account {
	if !C.watch_is_on(C.WATCH_COUNTS) {
		return nil
	}
	made := control.Account{Others: []control.Other{}}
	owners := make([]C.struct_owner, C.OWNERS_MAX)
	var uncounted C.uint64_t
	for _, o := range owners[:C.account_owners(unsafe.SliceData(owners), &uncounted)] {
		made.Others = append(made.Others, control.Other{Device: int(o.device), Library: C.GoString(o.library),
			Kind: control.Allocations, Bytes: uint64(o.bytes), Count: uint64(o.allocations)})
	}
	made.Uncounted = uint64(uncounted)
	if len(devices) > 0 {
		made.Others = append(made.Others, poolsAndGraphs(driver, devices)...)
	}
	return &made
}

// poolsAndGraphs asks about each pool that memory was taken from, each device's own pool, and each device's graphs. It
// leaves out what an older driver cannot tell.
func poolsAndGraphs(driver *cuda.Driver, devices []control.Device) (found []control.Other) {
	pools := make([]C.struct_counted_pool, C.POOLS_MAX)
	pools = pools[:C.account_pools_begin(unsafe.SliceData(pools))]
	defer C.account_pools_end()
	add := func(library, kind string, device int, count uint64, bytes uint64, err error) {
		if err == nil && bytes > 0 {
			same := func(o control.Other) bool { return o.Device == device && o.Library == library && o.Kind == kind }
			if i := slices.IndexFunc(found, same); i >= 0 {
				found[i].Bytes += bytes
				found[i].Count += count
				return
			}
			found = append(found, control.Other{Device: device, Library: library, Kind: kind, Bytes: bytes,
				Count: count})
		}
	}
	known := map[cuda.MemPool]bool{}
	for _, p := range pools {
		pool := cuda.MemPool(uintptr(p.pool))
		known[pool] = true
		bytes, err := driver.MemPoolReserved(pool)
		add(C.GoString(p.library), control.Pool, int(p.device), 1, bytes, err)
	}
	for _, d := range devices {
		device, err := driver.DeviceGet(d.Device)
		if err != nil {
			continue
		}
		if pool, err := driver.DefaultMemPool(device); err == nil && !known[pool] {
			bytes, err := driver.MemPoolReserved(pool)
			add("", control.Pool, d.Device, 1, bytes, err)
		}
		bytes, err := driver.GraphMemReserved(device)
		add("", control.Graphs, d.Device, 0, bytes, err)
	}
	return found
}
