package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// accounting starts testdata/account.c with two libraries, and an account.
func accounting(t *testing.T, cudart string, environment ...string) *steered {
	t.Helper()
	sockets(t)
	one := shared(t, "accounted")
	text := read(t, one)
	folder := t.TempDir()
	paths := []string{filepath.Join(folder, "libone.so.1"), filepath.Join(folder, "libtwo.so")}
	for _, path := range paths {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
	}
	h := steer(t, []string{compileWithDriver(t, "account", cudart)}, append([]string{"TMS_ACCOUNT=1",
		"CUDASIM_DEVICES=2", "LIBRARIES=" + strings.Join(paths, ":")}, environment...)...)
	line, err := h.stdout.ReadString('\n')
	require.NoError(t, err, "%s", h.stderr)
	require.Equal(t, "0\n", line)
	return h
}

// account asks the process for its account: by "DEVICE LIBRARY KIND" the MiB and their number.
func (h *steered) account() (uncounted uint64, others map[string]string) {
	h.t.Helper()
	account := h.state().Account
	require.NotNil(h.t, account)
	others = map[string]string{}
	for _, o := range account.Others {
		name := fmt.Sprint(o.Device, " ", o.Library, " ", o.Kind)
		require.NotContains(h.t, others, name)
		others[name] = fmt.Sprint(float64(o.Bytes)/mib, " ", o.Count)
	}
	return account.Uncounted, others
}

// Checks what each library has after every call, in whichever way the runtime reaches the driver.
func TestAccount(t *testing.T) {
	const one, two, pool = "0 libone.so.1 allocations", "0 libtwo.so allocations", "0 libtwo.so pool"
	const own = "0 libone.so.1 pool"
	type has map[string]string
	steps := []struct {
		does string
		has  has // nil: as before
	}{
		{"0 malloc 3", has{one: "3 1"}},
		{"1 driver 5", has{one: "3 1", two: "5 1"}},
		{"0 pitch 2", has{one: "5 2", two: "5 1"}},
		{"fail cuMemFree", nil},
		{"0 refused", nil},
		{"0 free", has{one: "3 1", two: "5 1"}},
		{"1 driverfree", has{one: "3 1"}},
		{"1 malloc 4", has{one: "3 1", two: "4 1"}},
		{"1 driverfree", has{one: "3 1"}}, // one library may free the other's memory
		{"1 malloc 4", has{one: "3 1", two: "4 1"}},
		{"1 torchfree", has{one: "3 1"}},
		{"0 free", has{}},

		{"region 1", has{}}, // the account leaves pausable memory out
		{"1 malloc 2", has{}},
		{"1 free", has{}},
		{"region 0", has{}},

		// Memory leaves the account with the last of its handles and mappings.
		{"1 reserve", has{}},
		{"1 create 0", has{two: "4 1"}},
		{"1 create 1", has{two: "8 2"}},
		{"1 map 0", nil},
		{"1 map 1", nil},
		{"1 release 0", nil},
		{"1 release 1", nil},
		{"fail cuMemUnmap", nil},
		{"1 unmapboth=999", has{}}, // not taken back
		{"1 unmapboth", nil},
		{"1 create 1", has{two: "4 1"}},
		{"1 map 1", nil},
		{"1 retain 1", nil},
		{"1 release 1", nil},
		{"1 unmap 1", nil},
		{"fail cuMemRelease", nil},
		{"1 release 1=999", has{}},
		{"1 release 1", nil},
		{"1 release 1=1", nil},
		{"1 create 0", has{two: "4 1"}},
		{"fail cuMemMap", nil},
		{"1 map 0=999", nil},
		{"1 map 0", nil},
		{"1 map 1=1", nil},
		{"1 release 0", nil},
		{"1 unmap 0", has{}},

		// A pool counts with what it holds, for the library that first took memory from it.
		{"1 async 3", has{pool: "3 1"}},
		{"0 async 2", has{pool: "5 1"}},
		{"1 asyncfree", has{pool: "2 1"}},
		{"0 asyncfree", has{}},
		{"0 pool", has{}},
		{"0 frompool 6", has{own: "6 1"}},
		{"0 asyncfree", has{}},
		{"0 current", has{}},
		{"1 async 7", has{own: "7 1"}},
		{"fail cuMemPoolDestroy", nil},
		{"0 destroy=999", has{}}, // until it is used again
		{"0 destroy", nil},
		{"0 destroy=1", has{}},
		{"1 asyncfree", has{}},

		{"device 1", has{}},
		{"0 malloc 2", has{"1 libone.so.1 allocations": "2 1"}},
		{"1 create 1", has{"1 libone.so.1 allocations": "2 1", "1 libtwo.so allocations": "4 1"}},
		{"1 async 1",
			has{"1 libone.so.1 allocations": "2 1", "1 libtwo.so allocations": "4 1", "1 libtwo.so pool": "1 1"}},
		{"1 asyncfree", has{"1 libone.so.1 allocations": "2 1", "1 libtwo.so allocations": "4 1"}},
		{"1 release 1", has{"1 libone.so.1 allocations": "2 1"}},
		{"0 free", has{}},
		{"device 0", has{}},

		{"1 malloc 1", has{two: "1 1"}},
		{"context ends", nil},
		{"context fails", has{two: "1 1", one: "6 3"}},
		{"storm", nil},
		{"fork", nil},
		{"0 free", has{two: "1 1", one: "4 2"}},
		{"0 free", has{two: "1 1", one: "2 1"}},
		{"0 free", has{two: "1 1"}},
	}
	for _, cudart := range eachMajor() {
		for name, preload := range map[string]string{"the runtime's own way": "NONE=", "all ways": reaching(t)} {
			t.Run(cudart+" "+name, func(t *testing.T) {
				h := accounting(t, cudart, preload)
				want := has{}
				for _, step := range steps {
					does, code, refused := strings.Cut(step.does, "=")
					if !refused {
						code = "0"
					}
					require.Equal(t, code, h.do(does), "%s: %s", step.does, h.stderr)
					if step.has != nil {
						want = step.has
					}
					uncounted, got := h.account()
					require.Equal(t, want, has(got), step.does)
					require.Zero(t, uncounted, step.does)
				}
				h.ends()
			})
		}
	}
}

// A reset ends a device's contexts with their memory, whichever library took it.
func TestAccountOfADeviceThatIsReset(t *testing.T) {
	h := accounting(t, majors[1])
	for _, does := range []string{"0 malloc 3", "1 driver 2", "1 async 1", "device 1", "0 malloc 4", "device 0"} {
		require.Equal(t, "0", h.do(does))
	}
	_, others := h.account()
	require.Equal(t, map[string]string{"0 libone.so.1 allocations": "3 1", "0 libtwo.so allocations": "2 1",
		"0 libtwo.so pool": "1 1", "1 libone.so.1 allocations": "4 1"}, others)
	require.Equal(t, "0", h.do("fail cuDevicePrimaryCtxReset"))
	require.Equal(t, "999", h.do("reset"))
	_, others = h.account()
	require.Equal(t, "3 1", others["0 libone.so.1 allocations"])
	require.Equal(t, "0", h.do("reset"))
	_, others = h.account()
	require.Equal(t, map[string]string{"1 libone.so.1 allocations": "4 1"}, others)
}

// The account is bounded. Memory that finds no room in it is counted as such, and its end changes nothing.
func TestAccountThatIsFull(t *testing.T) {
	const room, more = 64, 3 // pools; ACCOUNT_POOLS_MAX
	h := accounting(t, majors[1])
	for range room + more {
		require.Equal(t, "0", h.do("0 pool"))
		require.Equal(t, "0", h.do("0 frompool 1"))
		require.Equal(t, "0", h.do("0 asyncfree"))
		require.Equal(t, "0", h.do("1 malloc 1"))
		require.Equal(t, "0", h.do("0 frompool 1"))
	}
	uncounted, others := h.account()
	require.Equal(t, map[string]string{"0 libone.so.1 pool": fmt.Sprint(room, " ", room),
		"0 libtwo.so allocations": fmt.Sprint(room+more, " ", room+more)}, others)
	require.EqualValues(t, 2*more, uncounted) // once for each allocation from such a pool
	require.Equal(t, "0", h.do("0 destroy"))
	require.Equal(t, "0", h.do("1 free"))
	_, after := h.account()
	require.Equal(t, others["0 libone.so.1 pool"], after["0 libone.so.1 pool"])
	require.Equal(t, fmt.Sprint(room+more-1, " ", room+more-1), after["0 libtwo.so allocations"])
}

// Without being asked for, no account is kept, and the status says so.
func TestNoAccount(t *testing.T) {
	h := accounting(t, majors[1], "TMS_ACCOUNT=0")
	require.Equal(t, "0", h.do("0 malloc 3"))
	require.Nil(t, h.state().Account)
	h.ends()
}
