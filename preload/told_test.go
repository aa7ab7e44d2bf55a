package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// Under a limit, a program is told what it may have, in whichever way it asks; otherwise CUDA's and NVML's own figures.
func TestWhatAProgramIsTold(t *testing.T) {
	for i, cudart := range majors {
		more := []string{"-l:libcuda.so.1"}
		if i == 0 {
			more = append(more, "-DOLDER")
		}
		program := compile(t, "told", cudart, more...)
		linked := compile(t, "told", cudart, append(more, "-Wl,--no-as-needed", "-l:libnvidia-ml.so.1")...)
		limit := fmt.Sprint(40 << 20)
		for reach, preload := range map[string]string{"with reach": reaching(t),
			"without reach": "LD_PRELOAD=" + built(t, "lib", "libtms.so")} {
			settings := func(limit string) []string {
				return []string{preload, "CUDASIM_MEMORY=100M", "TMS_LIMIT_BYTES=" + limit,
					"CUDASIM_SHARED=" + strings.ReplaceAll(t.Name()+reach+cudart+limit, " ", "-")}
			}
			o := run(t, program, []string{"limited", reach}, settings(limit)...).succeeded(t)
			require.Equal(t, "tms: allocating 26.00 MiB on device 0: the allocation would exceed what the process may "+
				"have on the device: free memory, or start the program with a higher limit (--limit of tms run, "+
				"TMS_LIMIT_BYTES): it has 16.00 MiB of 40.00 MiB (said once; tms ps counts the others)\n", o.stderr)
			run(t, linked, []string{"bound", reach}, settings(limit)...).succeeded(t)
			run(t, program, []string{"own", reach}, settings("0")...).succeeded(t)
			pooled := run(t, program, []string{"pooled", reach}, append(settings(limit), "TMS_INIT_POOL=caching")...)
			require.Contains(t, pooled.succeeded(t).stderr, "may have on the device")
			run(t, program, []string{"generous", reach}, settings(fmt.Sprint(1<<30))...).succeeded(t)
		}
	}
}

// A program names its devices by UUIDs: CUDA numbers those alone, and NVML all.
func TestWhatAProgramIsToldOfDevicesByUUID(t *testing.T) {
	program := compile(t, "told", majors[1], "-l:libcuda.so.1")
	settings := []string{reaching(t), "CUDASIM_DEVICES=2", "CUDASIM_MEMORY=100M", "CUDASIM_SHARED=" + t.Name(),
		fmt.Sprint("TMS_LIMIT_BYTES=", 40<<20)}
	whole := "CUDA_VISIBLE_DEVICES=GPU-63756461-7369-6d2d-6465-766963652d01"
	run(t, program, []string{"second", "with reach"}, append(settings, whole)...).succeeded(t)
	const uuid = "MIG-612d7061-7274-2d6f-662d-612d67707501" // of a part of a GPU
	part := []string{"CUDASIM_NAME=NVIDIA H200 MIG 1g.18gb", "CUDA_VISIBLE_DEVICES=" + uuid, "UUID=" + uuid,
		"LD_LIBRARY_PATH=" + fakeNVML(t) + ":" + built(t, "sim"), "PROCESSES="}
	run(t, program, []string{"part", "with reach"}, append(settings, part...)...).succeeded(t)
}

// fakeNVML returns a folder with an NVML that says what the environment says.
func fakeNVML(t *testing.T) (folder string) {
	folder = t.TempDir()
	made := hermetic.Compile(t, "libnvidia-ml.so.1", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"testdata/libnvidia_ml.c")
	require.NoError(t, os.Symlink(made, filepath.Join(folder, "libnvidia-ml.so.1")))
	return folder
}

// Under a limit, NVML lists this user's processes alone, in each version of the lists.
func TestProcessesOfTheUser(t *testing.T) {
	folder, smi := fakeNVML(t), compile(t, "smi", "")
	own, others := fmt.Sprint(os.Getpid()), "99999999" // which no process has
	if hermetic.HasOtherUsers() {
		another := exec.Command("sleep", "inf")
		another.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		require.NoError(t, another.Start())
		t.Cleanup(func() {
			_ = another.Process.Kill()
			_ = another.Wait()
		})
		others += fmt.Sprint(" ", another.Process.Pid)
	}
	all := strings.Fields(others + " " + own)
	ask := func(version, driver string, limit int) string {
		o := run(t, smi, []string{version}, reaching(t), "LD_LIBRARY_PATH="+folder, "DRIVER="+driver, "UUID=GPU-none",
			"PROCESSES="+strings.Join(all, " "), fmt.Sprint("TMS_LIMIT_BYTES=", limit)).succeeded(t)
		require.Empty(t, o.stderr)
		return strings.TrimSpace(o.stdout)
	}
	list := func(pids ...string) (words string) {
		for _, kind := range []string{"Compute", "Graphics", "MPSCompute", "Detail"} {
			for _, pid := range pids {
				for i, each := range all {
					if each == pid {
						words += fmt.Sprintf(" %s:%s:%d", kind, pid, i+1)
					}
				}
			}
		}
		return words
	}
	for _, version := range []string{"", "_v2", "_v3"} {
		require.Equal(t, "0: 100 10 80"+list(all...), ask(version, "580.159.04", 0))
		used := len(all) // MiB of the one process of this user
		require.Equal(t, fmt.Sprintf("0: 40 %d %d", used, 40-used)+list(own), ask(version, "580.159.04", 40<<20))
	}
	lists, _, _ := strings.Cut(list(all...), " Detail")
	require.Contains(t, ask("_v3", "535.54.03", 40<<20), lists, "whose records may be longer")
}
