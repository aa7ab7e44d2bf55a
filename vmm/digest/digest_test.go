package digest

import (
	"math/big"
	"math/rand/v2"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/failpoint"
	"tms/internal/cudasim"
	"tms/vmm/cuda"
)

// open returns a driver, the simulator's unless TESTS_DRIVER names another, and a context.
func open(t testing.TB) (*cuda.Driver, cuda.Context) {
	t.Helper()
	path := os.Getenv("TESTS_DRIVER")
	if path == "" {
		path = cudasim.Start(t).Path
	}
	driver, err := cuda.Open(path)
	require.NoError(t, err)
	device, err := driver.DeviceGet(0)
	require.NoError(t, err)
	context, err := driver.DevicePrimaryCtxRetain(device)
	require.NoError(t, err)
	return driver, context
}

// memory is device memory with random contents, and the same contents in host memory.
type memory struct {
	t       testing.TB
	driver  *cuda.Driver
	context cuda.Context
	Span
	contents []byte
}

func newMemory(t testing.TB, driver *cuda.Driver, context cuda.Context, size uint64) *memory {
	t.Helper()
	granularity, err := driver.MemGetAllocationGranularity(0)
	require.NoError(t, err)
	whole := (size + granularity - 1) / granularity * granularity
	handle, err := driver.MemCreate(whole, 0)
	require.NoError(t, err)
	address, err := driver.MemAddressReserve(whole, granularity)
	require.NoError(t, err)
	require.NoError(t, driver.MemMap(address, whole, handle))
	require.NoError(t, driver.MemSetAccess(address, whole, 0))
	t.Cleanup(func() {
		require.NoError(t, driver.MemUnmap(address, whole))
		require.NoError(t, driver.MemRelease(handle))
		require.NoError(t, driver.MemAddressFree(address, whole))
	})
	m := &memory{t, driver, context, Span{address, size}, make([]byte, size)}
	random := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = random.Read(m.contents)
	m.upload()
	return m
}

func (m *memory) upload() {
	m.t.Helper()
	require.NoError(m.t, m.driver.OnStream(m.context, func(stream cuda.Stream) error {
		return m.driver.MemcpyHtoDAsync(m.Address, uintptr(unsafe.Pointer(&m.contents[0])), m.Size, stream)
	}))
}

// reference computes the sum of a block with whole numbers of any size, from the definition in digest.h.
func reference(contents []byte, k keys) uint64 {
	p := big.NewInt(prime)
	number := func(n uint64) *big.Int { return new(big.Int).SetUint64(n) }
	total := new(big.Int)
	weight := big.NewInt(1)
	for thread := range threads {
		sum := new(big.Int)
		for at := thread * 16; at < len(contents); at += 2 * threads * 16 {
			sum.Mul(sum, number(k.R))
			for i := range 8 {
				word := at + i%4*4 + i/4*threads*16
				if word < len(contents) {
					key := number(uint64(k.High[i])<<partBits | uint64(k.Low[i]))
					sum.Add(sum, key.Mul(key, number(uint64(*(*uint32)(unsafe.Pointer(&contents[word]))))))
				}
			}
			sum.Mod(sum, p)
		}
		total.Add(total, sum.Mul(sum, weight))
		weight = new(big.Int).Mod(new(big.Int).Mul(weight, number(k.Q)), p)
	}
	return total.Mod(total, p).Uint64()
}

func TestSumsFollowTheDefinition(t *testing.T) {
	driver, context := open(t)
	hasher := New(driver)
	require.NoError(t, hasher.Load(context))
	var spans []Span
	var all []*memory
	for _, size := range []uint64{2 << 20, 16, 4096 + 48, 6<<20 + 512} {
		m := newMemory(t, driver, context, size)
		all, spans = append(all, m), append(spans, m.Span)
	}
	for key := range hasher.keys { // all bits set, where the arithmetic is nearest to its limits
		for i := range 8 {
			hasher.keys[key].Low[i], hasher.keys[key].High[i] = 1<<partBits-1, 1<<partBits-1
		}
		hasher.keys[key].R = prime - 1 - uint64(key)
	}
	for i := range all[0].contents {
		all[0].contents[i] = 0xff
	}
	all[0].upload()
	sums, err := hasher.Sums(context, spans)
	require.NoError(t, err)
	require.Len(t, sums, len(spans))
	for i, m := range all {
		require.Len(t, sums[i], int((m.Size+BlockSize-1)/BlockSize))
		for b, sum := range sums[i] {
			block := m.contents[b*BlockSize : min((b+1)*BlockSize, len(m.contents))]
			require.Equal(t, Sum{reference(block, hasher.keys[0]), reference(block, hasher.keys[1])}, sum)
		}
	}
}

func TestOneBitChangesTheSumOfItsBlock(t *testing.T) {
	driver, context := open(t)
	hasher := New(driver)
	m := newMemory(t, driver, context, 4*BlockSize)
	before, err := hasher.Sums(context, []Span{m.Span})
	require.NoError(t, err)
	again, err := hasher.Sums(context, []Span{m.Span})
	require.NoError(t, err)
	require.Equal(t, before, again)
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		at := random.IntN(len(m.contents))
		bit := byte(1) << random.IntN(8)
		m.contents[at] ^= bit
		m.upload()
		after, err := hasher.Sums(context, []Span{m.Span})
		require.NoError(t, err)
		for b := range after[0] {
			if b == at/BlockSize {
				require.NotEqual(t, before[0][b], after[0][b])
				require.NotEqual(t, before[0][b][0], after[0][b][0])
				require.NotEqual(t, before[0][b][1], after[0][b][1])
			} else {
				require.Equal(t, before[0][b], after[0][b])
			}
		}
		m.contents[at] ^= bit
	}
}

// Each hasher has keys of its own: a sum says nothing outside its process.
func TestKeysAreRandom(t *testing.T) {
	driver, context := open(t)
	m := newMemory(t, driver, context, BlockSize)
	one, err := New(driver).Sums(context, []Span{m.Span})
	require.NoError(t, err)
	other, err := New(driver).Sums(context, []Span{m.Span})
	require.NoError(t, err)
	require.NotEqual(t, one, other)
}

// A failing driver call is reported, leaves nothing behind and does not disturb the next Sums.
func TestFailures(t *testing.T) {
	if os.Getenv("TESTS_DRIVER") != "" {
		t.Skip("failures are the simulator's")
	}
	driver, context := open(t)
	sim, err := cudasim.Load()
	require.NoError(t, err)
	m := newMemory(t, driver, context, 4*BlockSize)
	registered := sim.Stat("registered_bytes")
	for _, call := range []string{"cuThreadExchangeStreamCaptureMode", "cuLibraryLoadData", "cuLibraryGetKernel",
		"cuKernelGetFunction", "cuMemHostRegister_v2", "cuMemHostGetDevicePointer_v2", "cuLaunchKernel",
		"cuStreamSynchronize", "cuStreamCreate"} {
		hasher := New(driver)
		fired := sim.FailuresFired()
		sim.Fail(call, 1, 999)
		_, err := hasher.Sums(context, []Span{m.Span})
		require.Equal(t, fired+1, sim.FailuresFired(), "%s was not called", call)
		require.ErrorIs(t, err, cuda.Unknown, call)
		_, err = hasher.Sums(context, []Span{m.Span})
		require.NoError(t, err, call)
		hasher.Forget(context)
		require.Equal(t, registered, sim.Stat("registered_bytes"), call)
		require.Zero(t, sim.Stat("streams"))
	}
}

// A buffer that is given back when the thread's context cannot be put back is not given back twice: its addresses may
// be another's by then.
func TestReleasedOnce(t *testing.T) {
	if os.Getenv("TESTS_DRIVER") != "" {
		t.Skip("failures are the simulator's")
	}
	driver, context := open(t)
	sim, err := cudasim.Load()
	require.NoError(t, err)
	m := newMemory(t, driver, context, BlockSize)
	hasher := New(driver)
	_, err = hasher.Sums(context, []Span{m.Span})
	require.NoError(t, err)
	fired := sim.FailuresFired()
	sim.Fail("cuCtxPopCurrent_v2", 1, 999)
	sim.Fail("cuCtxSetCurrent", 1, 999)
	hasher.Trim(context)
	require.Equal(t, fired+2, sim.FailuresFired())
	require.Empty(t, driver.Reclaim.Waiting())
}

// BenchmarkSums hashes 1 GiB on a GPU (256 MiB on the simulator).
func BenchmarkSums(b *testing.B) {
	driver, context := open(b)
	size := uint64(256 << 20)
	if os.Getenv("TESTS_DRIVER") != "" {
		size = 4 << 30
	}
	hasher := New(driver)
	require.NoError(b, hasher.Load(context))
	m := newMemory(b, driver, context, size)
	start := time.Now()
	for b.Loop() {
		_, err := hasher.Sums(context, []Span{m.Span})
		require.NoError(b, err)
	}
	b.ReportMetric(float64(size)*float64(b.N)/time.Since(start).Seconds()/1e9, "GB/s")
}

// An allocation asks for a load while it holds the engine's lock, so it must not wait for one that is in the driver.
func TestLoadAsideWaitsForNoLoad(t *testing.T) {
	driver, context := open(t)
	h := New(driver)
	began, goOn := make(chan bool), make(chan bool)
	failpoint.Set(func(call string) error {
		if call == "cuLibraryLoadData" {
			close(began)
			<-goOn
		}
		return nil
	})
	defer failpoint.Set(nil)
	h.LoadAside(context)
	<-began
	h.LoadAside(context)
	close(goOn)
	h.AwaitLoads()
	require.NotZero(t, h.loaded[context])
}
