package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/nvml"
	"tms/vmm/stats"
)

// onOneDevice lets started programs and the command see one simulated device, and its NVML.
func onOneDevice(t *testing.T) {
	t.Helper()
	ownSockets(t)
	t.Setenv("LD_LIBRARY_PATH", built(t, "sim"))
	t.Setenv("CUDASIM_SHARED", fmt.Sprintf("%s-%d", t.Name(), os.Getpid()))
	t.Setenv("CUDASIM_MEMORY", "256M")
}

// bytesOf returns what tms ps --bytes --json prints about a process on one device.
func bytesOf(t *testing.T, s *steered) (fleet.DeviceBytes, map[string]uint64) {
	t.Helper()
	found := parsed[[]fleet.Process](t, succeeds(t, "ps", "--bytes", "--json"))
	i := slices.IndexFunc(found, func(p fleet.Process) bool { return p.PID == s.Process.Pid })
	require.GreaterOrEqual(t, i, 0, "the process is not there: %v", found)
	require.Len(t, found[i].Bytes, 1)
	parts := map[string]uint64{}
	for _, part := range found[i].Bytes[0].Parts {
		parts[part.Kind+" "+part.Name] = part.Bytes / (1 << 20)
	}
	return found[i].Bytes[0], parts
}

// Every byte that NVML reports of a process has a name, or is in the difference.
func TestBytes(t *testing.T) {
	const mib = 1 << 20
	onOneDevice(t)
	program := steeredProgram(t)
	counted, plain := startSteered(t, program, "TMS_ACCOUNT=1"), startSteered(t, program)
	require.Equal(t, "ok", counted.do("own 16"))
	require.Equal(t, "ok", counted.do("unseen 6"))
	require.Equal(t, "ok", plain.do("own 5"))

	all, parts := bytesOf(t, counted)
	require.Equal(t, map[string]uint64{"allocations steered": 16, "tag weights": 24, "tag cache": 8}, parts)
	require.Equal(t, fleet.FromNVML, all.Source)
	require.Equal(t, []uint64{54 * mib, 48 * mib, 6 * mib}, []uint64{all.UsedBytes, all.NamedBytes, all.RestBytes})
	all, parts = bytesOf(t, plain)
	require.Equal(t, map[string]uint64{"tag weights": 24, "tag cache": 8}, parts)
	require.Equal(t, []uint64{37 * mib, 32 * mib, 5 * mib}, []uint64{all.UsedBytes, all.NamedBytes, all.RestBytes})

	succeeds(t, "pause", "--force", "--tag", "weights", counted.number())
	out, words, code := command(t, "ps", "--bytes")
	require.Zero(t, code)
	require.Empty(t, words)
	require.Contains(t, out, counted.number()+" "+readable.Cut(program, tableWidth-len(counted.number())-1)+`
  GPU 0, cudasim, device 0: 30.0 MiB by NVML
    GPU-63756461-7369-6d2d-6465-766963652d00
    steered                    16.0 MiB  53.3%  1 allocation
    tag cache                  8.00 MiB  26.7%
        live 8.00 MiB, without contents 8.00 MiB
    tag weights                       0   0.0%
        live 24.0 MiB, paused 24.0 MiB, on host 24.0 MiB
    context, modules and other 6.00 MiB  20.0%  the difference
    80.0% of 30.0 MiB is named by an allocation
`)
	require.Regexp(t, `(?m)^    what is not pausable 5\.00 MiB  13\.5%  the difference
    86\.5% of 37\.0 MiB is named by an allocation
    libraries are not counted: .*$`, out)
	requireFits(t, out)

	_, address := serving(t)
	s := scrape(t, address)
	one, other := "pid="+counted.number(), "pid="+plain.number()
	require.Equal(t, []float64{16 * mib},
		s.values("tms_device_library_bytes", one, "device=0", "library=steered", "kind=allocations"))
	require.Empty(t, s.values("tms_device_library_bytes", other))
	require.Equal(t, []float64{30 * mib}, s.values("tms_device_process_bytes", one, "source=nvml"))
	require.Equal(t, []float64{6 * mib}, s.values("tms_device_unnamed_bytes", one, "device=0"))
	require.Equal(t, []float64{5 * mib}, s.values("tms_device_unnamed_bytes", other, "device=0"))
}

// Without NVML the names are still printed.
func TestBytesWithoutNVML(t *testing.T) {
	onOneDevice(t)
	s := startSteered(t, steeredProgram(t), "TMS_ACCOUNT=1")
	require.Equal(t, "ok", s.do("own 16"))
	none := t.TempDir()
	library(t, filepath.Join(none, "libnvidia-ml.so.1"), "")
	t.Setenv("LD_LIBRARY_PATH", none)
	out := succeeds(t, "ps", "--bytes")
	require.Contains(t, out, "\n  device 0: NVML has no figure for the process\n    "+uuidOf(0)+"\n")
	require.Regexp(t, `(?m)^    steered +16\.0 MiB      -  1 allocation$`, out)
	require.Contains(t, out, "NVML, which comes with NVIDIA's driver, is not available: ")
	require.Contains(t, out, "; so what a process has in all is not known\n")
	require.NotContains(t, out, "the difference")
}

// The output keeps to its width, and sends a terminal nothing but text.
func TestTableOfBytes(t *testing.T) {
	long := strings.Repeat("long", 30)
	state := control.ProcessState{PID: 1, Command: long, Devices: []control.Device{{Device: 1, UUID: "GPU-2"}},
		Stats: control.Stats{Stats: stats.Stats{Devices: []stats.Device{{Device: 0, UUID: "GPU-1", PoolBytes: 5 << 20,
			BackupBytes: 6 << 20, Tags: []stats.Tag{{Tag: long, LiveBytes: 999 << 30, PhysicalBytes: 10 << 20,
				PausedBytes: 999 << 30, SlackBytes: 999 << 30, BackupBytes: 999 << 30, HostBytes: 999 << 30}}}}}},
		Account: &control.Account{Uncounted: 3, Others: []control.Other{
			{Device: 0, Library: "lib\x1b[2J.so", Kind: control.Allocations, Bytes: 2 << 20, Count: 4},
			{Device: 0, Kind: control.Pool, Bytes: 3 << 20, Count: 1},
			{Device: 0, Library: "libcublas.so.12", Kind: control.Pool, Bytes: 1 << 20},
			{Device: 0, Kind: control.Graphs, Bytes: 4 << 20}}}}
	found := []fleet.Process{{ProcessState: state, Here: 1},
		{ProcessState: control.ProcessState{PID: 12}, Error: "it does not answer"}}
	fleet.Measure(found, []nvml.Device{
		{UUID: "GPU-1", Name: "GPU", Processes: []nvml.Process{{PID: 1, UsedBytes: 62 << 20, Known: true}}},
		{Index: 3, UUID: "GPU-2", Name: "GPU", Processes: []nvml.Process{{PID: 1, UsedBytes: 500 << 20, Known: true}}}})
	out := page{width: tableWidth}
	writeBytes(&out, found, nil)
	require.Equal(t, `1 longlonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglonglongl…
  GPU 0, GPU, device 0: 62.0 MiB by NVML
    GPU-1
    tag longlonglonglonglonglonglonglonglon… 10.0 MiB  16.1%
        live 999 GiB, paused 999 GiB, slack 999 GiB, on host 999 GiB
    contents of other devices                6.00 MiB   9.7%
    pools over cudaMalloc                    5.00 MiB   8.1%
    allocations of graphs                    4.00 MiB   6.5%
    memory pool                              3.00 MiB   4.8%
    lib�[2J.so                               2.00 MiB   3.2%  4 allocations
    libcublas.so.12 memory pool              1.00 MiB   1.6%
    context, modules and other               31.0 MiB  50.0%  the difference
    50.0% of 62.0 MiB is named by an allocation
    3 allocations are not counted: there are too many
  GPU 3, GPU, device 1: 500 MiB by NVML
    GPU-2
    context, modules and other  500 MiB 100.0%  the difference
    0.0% of 500 MiB is named by an allocation
    3 allocations are not counted: there are too many

12 it does not answer
`, out.String())
	requireFits(t, out.String())
}
