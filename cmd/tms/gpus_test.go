package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/fleet"
	"tms/internal/group"
)

// onMachine lets started programs and the command see a machine with simulated devices of 256 MiB, and its NVML.
func onMachine(t *testing.T, devices int) {
	t.Helper()
	onOneDevice(t)
	t.Setenv("CUDASIM_DEVICES", strconv.Itoa(devices))
}

// listedOf returns what tms ps --json says about a process.
func listedOf(t *testing.T, s *steered) fleet.Process {
	t.Helper()
	found := parsed[[]fleet.Process](t, succeeds(t, "ps", "--json", s.number()))
	require.Len(t, found, 1)
	require.Empty(t, found[0].Error)
	return found[0]
}

// isOn checks that the list and the metrics name one GPU for the weights of a process, and its own device 0 second.
func (s *steered) isOn(gpu int, label, metrics string) {
	s.t.Helper()
	require.Regexp(s.t, `(?m)^ *`+s.number()+` \S+ +`+label+` weights +24.0 MiB`, succeeds(s.t, "ps"))
	listed := listedOf(s.t, s)
	require.Equal(s.t, []any{uuidOf(gpu), gpu, 0}, []any{listed.Stats.Devices[0].UUID, *listed.Stats.Devices[0].GPU,
		listed.Stats.Devices[0].Device})
	require.Equal(s.t, gpu, *listed.Devices[0].GPU)
	scraped := scrape(s.t, metrics)
	labels := []string{"pid=" + s.number(), fmt.Sprint("gpu=", gpu), "uuid=" + uuidOf(gpu), "device=0"}
	for _, name := range []string{"tms_device_size_bytes", "tms_device_process_bytes", "tms_device_unnamed_bytes",
		"tms_pauses_total", "tms_resume_seconds_total"} {
		require.Len(s.t, scraped.values(name, labels...), 1, name)
		require.Len(s.t, scraped.values(name, labels[0], "device=0"), 1, name)
	}
	require.Len(s.t, scraped.values("tms_tag_held_bytes", append(labels, "tag=weights")...), 1)
	require.Len(s.t, scraped.values("tms_tag_held_bytes", labels[0], "tag=weights"), 1)
}

// A GPU has the number that NVML gives it, whatever the program calls it and however that came about.
func TestNumbersOfGPUs(t *testing.T) {
	hermetic.Thorough(t)
	onMachine(t, 4)
	t.Setenv("CUDASIM_NAME", "cudasim,cudasim,cudasim,NVIDIA H200 MIG 1g.18gb")
	const order = "CUDASIM_FASTEST=1,0,3,2"
	program := steeredProgram(t)
	_, metrics := serving(t)
	used := make([]float64, 4)
	for _, c := range []struct {
		environment []string
		gpu         int
		label       string
	}{
		{nil, 0, "0"},
		{[]string{"CUDA_VISIBLE_DEVICES=2,0"}, 2, "2 as 0"},
		{[]string{"CUDA_VISIBLE_DEVICES=" + uuidOf(1)}, 1, "1 as 0"},
		{[]string{"CUDA_VISIBLE_DEVICES=MIG-612d7061-7274-2d6f-662d-612d67707503"}, 3, "3 as 0"}, // a part of GPU 3
		{[]string{order}, 1, "1 as 0"},
		{[]string{order, "CUDA_VISIBLE_DEVICES=3"}, 2, "2 as 0"},
		{[]string{order, "CUDA_VISIBLE_DEVICES=3", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}, 3, "3 as 0"},
		{[]string{"CUDASIM_CONTAINER=2,3"}, 2, "2 as 0"}, // a container with two of the GPUs
		{[]string{"CUDASIM_CONTAINER=2,3", "CUDA_VISIBLE_DEVICES=1"}, 3, "3 as 0"},
	} {
		s := startSteered(t, program, c.environment...)
		t.Log(c.environment)
		s.isOn(c.gpu, c.label, metrics)
		used[c.gpu] += 32 << 20
		require.Contains(t, succeeds(t, "ps", "--bytes", s.number()), fmt.Sprintf(", device 0: 32.0 MiB by NVML\n    %s\n",
			uuidOf(c.gpu)))
		bytes := parsed[[]fleet.Process](t, succeeds(t, "ps", "--bytes", "--json", s.number()))[0].Bytes[0]
		require.Equal(t, []any{c.gpu, uuidOf(c.gpu), 0}, []any{*bytes.GPU, bytes.UUID, bytes.Device})
		requireFits(t, succeeds(t, "ps"))
	}
	joinsWithDCGM(t, scrape(t, metrics), used)
}

// In a container, NVML numbers only the GPUs that the container has, from 0, and the UUID stays. Where NVML does not show
// a GPU, or is missing, the GPU has no number.
func TestGPUsThatNVMLDoesNotShow(t *testing.T) {
	onMachine(t, 4)
	s := startSteered(t, steeredProgram(t), "CUDASIM_CONTAINER=2,3", "CUDA_VISIBLE_DEVICES=1")
	t.Setenv("CUDASIM_CONTAINER", "2,3")
	require.Regexp(t, s.number()+` \S+ +1 as 0 weights`, succeeds(t, "ps"))
	require.Equal(t, uuidOf(3), listedOf(t, s).Stats.Devices[0].UUID)

	unknown := func() {
		t.Helper()
		out := succeeds(t, "ps")
		require.Regexp(t, s.number()+` \S+ +- as 0 weights`, out)
		require.Contains(t, out, "\nNVML does not show "+uuidOf(3)+": device 0 of "+s.number()+"\n")
		require.Equal(t, 1, strings.Count(out, uuidOf(3)))
		requireFits(t, out)
		listed := listedOf(t, s)
		require.Equal(t, uuidOf(3), listed.Stats.Devices[0].UUID)
		require.Nil(t, listed.Stats.Devices[0].GPU)
		require.NotContains(t, succeeds(t, "ps", "--json"), `"gpu"`)
		require.Contains(t, succeeds(t, "pause", "--dry-run", "--force", s.number()), "of device 0 ("+uuidOf(3)+"): ")
		_, address := serving(t)
		require.Equal(t, []float64{24 << 20}, scrape(t, address).values("tms_tag_held_bytes", "tag=weights", "gpu=",
			"uuid="+uuidOf(3), "device=0"))
	}
	t.Setenv("CUDASIM_CONTAINER", "0,1") // another one's
	unknown()
	none := t.TempDir()
	library(t, filepath.Join(none, "libnvidia-ml.so.1"), "")
	t.Setenv("LD_LIBRARY_PATH", none)
	unknown()
}

// After a move the names are those of the GPU where the program is now, in lists, metrics, dry runs and errors.
func TestNumbersAfterAMove(t *testing.T) {
	onMachine(t, 3)
	recording := filepath.Join(t.TempDir(), "recording")
	s := startSteered(t, steeredProgram(t), reaching(t), "CUDA_VISIBLE_DEVICES=2", "TMS_TRACE="+recording)
	other := startSteered(t, steeredProgram(t), "CUDA_VISIBLE_DEVICES=1")
	_, metrics := serving(t)
	s.isOn(2, "2 as 0", metrics)
	succeeds(t, "move", s.number(), "--to", "1")
	s.isOn(1, "1 as 0", metrics)
	require.Contains(t, succeeds(t, "pause", "--dry-run", s.number()), "would free 32.00 MiB of GPU 1 (device 0): ")
	succeeds(t, "pause", s.number())
	s.isOn(1, "1 as 0", metrics)
	other.do("hog")
	fails(t, exitNo, s.number()+": resume: GPU 1 (device 0) has 0 bytes free and 32.00 MiB are needed", "resume",
		s.number())
	require.Contains(t, succeeds(t, "report", recording, "--format", "perfetto", "-o", "-"), `"name":"process_labels",`+
		`"pid":`+s.number()+`,"ts":0,"args":{"labels":"device 0: `+uuidOf(2)+", device 0: "+uuidOf(1)+`"}}`)
	require.Contains(t, succeeds(t, "report", recording, "-o", "-"), `"places":[{"device":0,"uuid":"`+uuidOf(2)+`"},`)
	plans, _, code := command(t, "resume", "--dry-run", "--json", s.number())
	require.Equal(t, exitNo, code)
	plan := parsed[[]group.Plan](t, plans)[0]
	require.Equal(t, []any{1, uuidOf(1), 0}, []any{*plan.Devices[0].GPU, plan.Devices[0].UUID, plan.Devices[0].Device})
	require.Contains(t, plan.Error, "it does not fit: GPU 1 (device 0) would have 0 bytes free")
}

// dcgm serves what DCGM's exporter says about the machine's devices, in the exporter's format.
func dcgm(t *testing.T, usedBytes []float64) (address string) {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	server := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(to, "# HELP DCGM_FI_DEV_FB_USED Framebuffer memory used (in MiB).\n# TYPE DCGM_FI_DEV_FB_USED gauge\n")
		for i, bytes := range usedBytes {
			fmt.Fprintf(to, "DCGM_FI_DEV_FB_USED{gpu=\"%d\",UUID=%q,pci_bus_id=\"00000000:%02X:00.0\",device=\"nvidia%[1]d\","+
				"modelName=\"cudasim\",Hostname=%[4]q} %[5]v\n", i, uuidOf(i), i+1, host, bytes/(1<<20))
		}
		fmt.Fprint(to, "# HELP DCGM_FI_DEV_GPU_UTIL GPU utilization (in %).\n# TYPE DCGM_FI_DEV_GPU_UTIL gauge\n")
		for i := range usedBytes {
			fmt.Fprintf(to, "DCGM_FI_DEV_GPU_UTIL{gpu=\"%d\",UUID=%q,device=\"nvidia%[1]d\",Hostname=%[3]q} 50\n", i, uuidOf(i),
				host)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL + "/metrics"
}

// joinsWithDCGM checks that each series of a device has the UUID of one of DCGM's series, and that the bytes of both agree.
func joinsWithDCGM(t *testing.T, s scraped, usedBytes []float64) {
	t.Helper()
	sums := make([]float64, len(usedBytes))
	theirs := families(t, served(t, dcgm(t, usedBytes)))
	for name, family := range s.families {
		for _, m := range family.Metric {
			labels := map[string]string{}
			for _, l := range m.Label {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["device"] == "" {
				continue
			}
			joined := theirs.values("DCGM_FI_DEV_FB_USED", "UUID="+labels["uuid"], "gpu="+labels["gpu"])
			require.Len(t, joined, 1, "%s %v", name, labels)
			if gpu, err := strconv.Atoi(labels["gpu"]); err == nil && name == "tms_device_process_bytes" {
				sums[gpu] += m.GetGauge().GetValue()
			}
		}
	}
	require.Equal(t, usedBytes, sums)
	require.True(t, slices.ContainsFunc(sums, func(bytes float64) bool { return bytes > 0 }))
}
