package main

import (
	"cmp"
	"context"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/control"
	"tms/internal/control/client"
)

// What clients of one process may do to each other's rights (internal/control/rights), over its socket.

// working starts a host whose threads give the device work all the time.
func working(t *testing.T) *steered {
	t.Helper()
	h := onlyControlled(t, reaching(t))
	h.do("work")
	return h
}

// goesOn waits until the threads give the device work again; each may still have had one count to make.
func (h *steered) goesOn(words ...any) {
	h.t.Helper()
	cycles := func() int {
		count := h.number("cycles")
		return count
	}
	before := cycles()
	require.Eventually(h.t, func() bool { return cycles() > before+3 }, time.Minute, time.Millisecond, words...)
}

var holdThreads = control.SteerRequest{Op: control.Pause, Hold: true}

// Whatever others do, a client that holds the threads up keeps doing so, until it releases them itself or leaves.
func TestAHoldIsItsClients(t *testing.T) {
	h := working(t)
	for name, others := range map[string][]control.SteerRequest{
		"nothing":         nil,
		"resume":          {gated(control.Resume, "")},
		"resume of a tag": {gated(control.Resume, "weights")},
		"keep":            {{Op: control.Keep}},
		"undo":            {{Op: control.Undo}},
		"pause":           {gated(control.Pause, "")},
		"pause and undo":  {gated(control.Pause, ""), {Op: control.Undo}},
		"pause and keep":  {gated(control.Pause, ""), {Op: control.Keep}, gated(control.Resume, "")},
		"hold":            {holdThreads},
		"hold and undo":   {holdThreads, {Op: control.Undo}},
		"hold and pause":  {holdThreads, gated(control.Pause, ""), gated(control.Resume, "")},
		"hold and keep":   {holdThreads, holdThreads, {Op: control.Keep}},
	} {
		holder, other := h.dial(), h.dial()
		well(t, holder, holdThreads)
		for _, r := range others {
			well(t, other, r)
		}
		require.True(t, h.state().HeldUp, name)
		other.Close()
		h.eventually(nonePaused)
		require.True(t, h.state().HeldUp, name)
		holder.Close()
		h.goesOn(name)
	}
	// A request that fails does not release the hold either, nor does the client's own keep; its own pause and undo do.
	holder, other := h.dial(), h.dial()
	well(t, holder, holdThreads)
	never := 600.0
	refused := gated(control.Pause, "")
	refused.Idle = &never
	require.Equal(t, 600, request(t, other, refused).Code)
	well(t, holder, control.SteerRequest{Op: control.Keep})
	require.True(t, h.state().HeldUp)
	well(t, holder, control.SteerRequest{Op: control.Undo})
	h.goesOn()
	well(t, holder, holdThreads)
	well(t, holder, holdThreads)
	well(t, holder, gated(control.Pause, "cache"))
	well(t, other, gated(control.Resume, ""))
	h.goesOn()
	h.do("calm")
	require.Equal(t, "ok", h.do("check"))
	h.ends()
}

// A client that must keep sending and stays silent counts as gone.
func TestAHoldOfAClientThatIsSilent(t *testing.T) {
	h := working(t)
	for _, r := range []control.SteerRequest{{Op: control.Pause, Hold: true, Lease: .05},
		{Op: control.Align, Lease: .05}} {
		silent := h.dial()
		well(t, silent, r)
		h.goesOn()
		require.Eventually(t, func() bool { // it no longer aligns
			other := h.dial()
			defer other.Close()
			return request(t, other, control.SteerRequest{Op: control.Align}).OK
		}, time.Minute, 5*time.Millisecond)
		reply, err := silent.Do(context.Background(), control.SteerRequest{Op: control.Status})
		require.NoError(t, err)
		require.Contains(t, reply.Error, "this client was silent for 50ms")
	}
	h.do("calm")
	h.ends()
}

// A program that resets its device takes the context away from a pause that has begun; the pause finds another moment.
func TestPausesBesideResets(t *testing.T) {
	h := onlyControlled(t, reaching(t), "TMS_DEBUG=invariants")
	h.do("reset")
	c := h.dial()
	for range often(1000, 100) {
		well(t, c, gated(control.Pause, ""))
		well(t, c, gated(control.Resume, ""))
	}
	h.goesOn()
	h.do("settle")
	h.ends()
}

// The hold before a pause in parts finds another moment, too, but that of a job does not: its processes stop at one
// moment.
func TestAHoldFindsAnotherMoment(t *testing.T) {
	for _, parts := range []bool{false, true} {
		h := onlyControlled(t, reaching(t), "TMS_DEBUG=invariants")
		c := h.dial()
		h.do("entangle") // the device is not idle before a thread has been at the gate and has come back
		reply := request(t, c, control.SteerRequest{Op: control.Pause, Hold: true, Parts: parts, Timeout: new(5.0)})
		require.Equal(t, parts, reply.OK, reply.Error)
		if parts {
			well(t, c, control.SteerRequest{Op: control.Pause, Parts: true})
			well(t, c, gated(control.Resume, ""))
		}
	}
}

// A pause in parts that has given memory back, or has paused what still holds it, finds no other moment: its client has
// what is paused until it undoes that, or goes.
func TestAPauseInPartsThatFailsIsItsClients(t *testing.T) {
	h := onlyControlled(t, reaching(t), "TMS_DEBUG=invariants", "TMS_EXTENT_BYTES=1")
	for range 3 {
		h.do("allocate")
	}
	parts := pauseOf("weights")
	parts.Parts = true
	hold := parts
	hold.Hold = true
	for _, call := range []string{"cuMemUnmap 2 709", "cuMemRelease 1 999"} {
		for _, goes := range []bool{false, true} {
			c := h.dial()
			well(t, c, hold)
			h.do("fail " + call)
			reply := request(t, c, parts)
			require.False(t, reply.OK)
			h.do("fail")
			if goes {
				c.Close()
			} else {
				well(t, c, control.SteerRequest{Op: control.Undo})
			}
			h.eventually(nonePaused)
			require.Equal(t, "ok", h.do("check")) // which waits at the gate
		}
	}
}

// What a client has paused and not kept is its own too: no other client's keep makes it stay, and no other's end
// resumes it.
func TestAPauseIsItsClients(t *testing.T) {
	h := onlyControlled(t)
	weightsPaused := map[string]uint64{"weights": bothPaused["weights"]}
	one, other := h.dial(), h.dial()
	well(t, other, pauseOf("cache"))
	well(t, one, pauseOf("weights"))
	well(t, other, control.SteerRequest{Op: control.Keep})
	one.Close()
	h.eventually(cachePaused)
	other.Close()

	// A client that has resumed and paused again does not lose that pause when the previous pauser ends.
	well(t, h.dial(), resumeOf(""))
	one, other = h.dial(), h.dial()
	well(t, one, pauseOf(""))
	well(t, other, resumeOf("weights"))
	well(t, other, pauseOf("weights"))
	well(t, other, control.SteerRequest{Op: control.Keep})
	one.Close()
	h.eventually(weightsPaused)
	other.Close()
	well(t, h.dial(), resumeOf(""))

	// An undo leaves paused what another client wants paused; the last client's undo resumes that too.
	one, other = h.dial(), h.dial()
	well(t, one, pauseOf(""))
	well(t, other, pauseOf("cache"))
	well(t, one, control.SteerRequest{Op: control.Undo})
	require.Equal(t, cachePaused, h.paused())
	well(t, other, control.SteerRequest{Op: control.Undo})
	require.Equal(t, nonePaused, h.paused())

	// An undo that fails can be made again.
	well(t, one, pauseOf(""))
	h.do("hog")
	require.Equal(t, 2, request(t, one, control.SteerRequest{Op: control.Undo}).Code)
	require.Equal(t, bothPaused, h.paused())
	h.do("unhog")
	well(t, one, control.SteerRequest{Op: control.Undo})
	require.Equal(t, nonePaused, h.paused())
	require.Equal(t, "ok", h.do("check"))
	h.ends()
}

// Clients make every request in any order, several at once, and vanish. Then the process is as before, except for what
// was to be kept, which a resume brings back. TMS_CLIENTS_SECONDS makes it longer, TMS_CLIENTS_SEED repeats one.
func TestClientsAtRandom(t *testing.T) {
	h := working(t)
	seconds, err := strconv.ParseFloat(cmp.Or(os.Getenv("TMS_CLIENTS_SECONDS"), "1"), 64)
	require.NoError(t, err)
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("TMS_CLIENTS_SEED"), strconv.Itoa(time.Now().Nanosecond())), 10, 64)
	require.NoError(t, err)
	t.Logf("TMS_CLIENTS_SEED=%d", seed)
	rounds := uint64(0)
	for until := time.Now().Add(time.Duration(seconds * float64(time.Second))); time.Now().Before(until); rounds++ {
		keeps := rounds%2 == 1
		var all sync.WaitGroup
		for i := range uint64(5) {
			all.Go(func() { behave(h, rand.New(rand.NewPCG(seed+rounds, i)), keeps) })
		}
		all.Wait()
		if keeps {
			c := h.dial()
			well(t, c, gated(control.Resume, ""))
			c.Close()
		}
		h.eventually(nonePaused)
		h.goesOn("round %d", rounds)
	}
	h.do("calm")
	require.Equal(t, "ok", h.do("check"))
	h.ends()
	t.Logf("%d rounds", rounds)
}

// behave is one client.
func behave(h *steered, r *rand.Rand, keeps bool) {
	c, err := client.Dial(h.pid())
	if err != nil {
		return
	}
	defer c.Close()
	for range 2 + r.IntN(10) {
		ops := []string{control.Pause, control.Pause, "hold", "hold", control.Resume, control.Undo, control.Align,
			control.Status}
		if keeps {
			ops = append(ops, control.Keep)
		}
		request := gated(ops[r.IntN(len(ops))], "")
		timeout, idle := []float64{0, 0.01, 1}[r.IntN(3)], []float64{0, 0.001}[r.IntN(2)]
		tag := []string{"", "", "weights", "cache"}[r.IntN(4)]
		if tag != "" && (request.Op == control.Pause || request.Op == control.Resume) {
			request.Tag = &tag
		}
		switch request.Op {
		case "hold":
			request = holdThreads
			request.Timeout = &timeout
		case control.Pause:
			request.Timeout = &timeout
			if r.IntN(4) == 0 {
				request.Idle, request.Yield = &idle, true
			}
		case control.Resume:
			request.Wait = float64(r.IntN(2)) / 10
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if r.IntN(6) == 0 { // it vanishes in the middle
			cancel()
			ctx, cancel = context.WithTimeout(context.Background(), time.Duration(r.IntN(20_000))*time.Microsecond)
		}
		_, err := c.Do(ctx, request)
		cancel()
		if err != nil {
			return
		}
	}
}
