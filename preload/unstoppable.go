package main

// #include "shim.h"
import "C"

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"tms/vmm"
)

// unstoppable returns why the gate could not stop all work on pausable memory, as far as this library can know.
func (p *Process) unstoppable(e *vmm.Engine) error {
	if name := C.gate_not_gated(); name != nil {
		return unsupported("the program has %s, which this version does not know and cannot stop; use a newer "+
			"one (TMS_PAUSE_FORCE=1 pauses anyway)", C.GoString(name))
	}
	var library [256]C.char
	if C.gate_self_starting(&library[0], C.size_t(len(library))) {
		return unsupported("%s is loaded, so NVSHMEM is in use, with which GPUs and network cards start work by "+
			"themselves, which cannot be stopped (TMS_PAUSE_FORCE=1 pauses anyway)", C.GoString(&library[0]))
	}
	if driver := p.elsewhere(); driver != "" {
		return unsupported("%s is loaded in a namespace of its own (dlmopen), where its calls cannot be stopped "+
			"(TMS_PAUSE_FORCE=1 pauses anyway)", driver)
	}
	if address := e.Shared().Exported(); address != 0 {
		return unsupported("the memory at %#x was exported, and its importers cannot be stopped "+
			"(TMS_PAUSE_FORCE=1 pauses anyway)", address)
	}
	return nil
}

// namespaces is what the last look for a driver in another namespace found. Only a load can change that.
type namespaces struct {
	sync.Mutex
	loads  C.uint64_t
	driver string
}

// elsewhere returns the path of a driver whose code is mapped, but not as a library that the loader shows to libtms.so:
// dlmopen has opened it in a namespace of its own. It returns "" if there is none.
func (p *Process) elsewhere() string {
	p.gate.namespaces.Lock()
	defer p.gate.namespaces.Unlock()
	loads := C.gate_loads()
	if loads == p.gate.namespaces.loads {
		return p.gate.namespaces.driver
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	p.gate.namespaces.loads, p.gate.namespaces.driver = loads, ""
	for line := range strings.Lines(string(maps)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || !strings.HasPrefix(filepath.Base(fields[5]), "libcuda.so") || fields[1][2] != 'x' {
			continue
		}
		start, _, _ := strings.Cut(fields[0], "-")
		if address, err := strconv.ParseUint(start, 16, 64); err == nil && !C.gate_knows(C.uintptr_t(address)) {
			p.gate.namespaces.driver = fields[5]
		}
	}
	return p.gate.namespaces.driver
}
