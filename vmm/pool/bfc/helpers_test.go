package bfc

import (
	"testing"

	"tms/vmm/pool"
	"tms/vmm/pool/internal/pooltest"
)

const (
	KiB = 1 << 10
	MiB = 1 << 20
	GiB = 1 << 30
)

func newPool(t *testing.T, source pool.Source, options string) *Pool {
	t.Helper()
	return pooltest.New(t, New, check, source, options)
}

func detail(p *Pool) Detail { return p.Stats().Detail.(Detail) }

func dump(p *Pool) *MemoryDump {
	d := p.Snapshot().(MemoryDump)
	return &d
}

func check(t *testing.T, p *Pool) { pooltest.CheckBestFit(t, &p.table) }
