package main

/*
#include "shim.h"
*/
import "C"

import (
	"slices"
	"unsafe"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// accountOf reads what CUDA itself has given to whom (account.c); nil where that is not asked for. Pools and graphs are
// asked of the driver, unless all of the process was paused: it would wait.
func accountOf() *control.Account {
	if !C.account_on {
		return nil
	}
	made := control.Account{Others: []control.Other{}}
	owners := make([]C.struct_account_owner, C.ACCOUNT_OWNERS_MAX)
	var uncounted C.uint64_t
	for _, o := range owners[:C.account_owners(unsafe.SliceData(owners), &uncounted)] {
		made.Others = append(made.Others, control.Other{Device: int(o.device), Library: C.GoString(o.library), Kind: control.Allocations,
			Bytes: uint64(o.bytes), Count: uint64(o.allocations)})
	}
	made.Uncounted = uint64(uncounted)
	if engine.Load() != nil && !C.everything_asked() { // with the engine there is a driver
		made.Others = append(made.Others, poolsAndGraphs()...)
	}
	return &made
}

// poolsAndGraphs asks each pool that memory was taken from, each device's own, and each device for its graphs. What
// cannot be asked, of an older driver, is left out.
func poolsAndGraphs() (found []control.Other) {
	pools := make([]C.struct_account_pool, C.ACCOUNT_POOLS_MAX)
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
			found = append(found, control.Other{Device: device, Library: library, Kind: kind, Bytes: bytes, Count: count})
		}
	}
	known := map[cuda.MemPool]bool{}
	for _, p := range pools {
		pool := cuda.MemPool(uintptr(p.pool))
		known[pool] = true
		bytes, err := driver.MemPoolReserved(pool)
		add(C.GoString(p.library), control.Pool, int(p.device), 1, bytes, err)
	}
	devices, _ := driver.DeviceCount()
	for ordinal := range devices {
		device, err := driver.DeviceGet(ordinal)
		if err != nil {
			continue
		}
		if active, err := driver.DevicePrimaryCtxGetState(device); err != nil || !active {
			continue
		}
		if pool, err := driver.DefaultMemPool(device); err == nil && !known[pool] {
			bytes, err := driver.MemPoolReserved(pool)
			add("", control.Pool, ordinal, 1, bytes, err)
		}
		bytes, err := driver.GraphMemReserved(device)
		add("", control.Graphs, ordinal, 0, bytes, err)
	}
	return found
}
