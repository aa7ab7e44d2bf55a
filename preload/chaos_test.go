package main

import (
	"cmp"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Random operations with failures, contents compared. TMS_CHAOS_SEED repeats a run, TMS_CHAOS_SECONDS makes each of
// them longer (scripts/soak.sh).
func TestChaos(t *testing.T) {
	program := compile(t, "chaos", majors[1])
	seed := cmp.Or(os.Getenv("TMS_CHAOS_SEED"), strconv.FormatInt(time.Now().UnixNano()%1e9, 10))
	seconds := cmp.Or(os.Getenv("TMS_CHAOS_SECONDS"), "1")
	duration, err := time.ParseDuration(seconds + "s")
	require.NoError(t, err)
	// One thread repeats a seed's run exactly. With little memory resumes fail; only with much do backups fit on the
	// other device.
	type configuration struct{ threads, memory, more string }
	configurations := []configuration{{"1", "1G", ""}, {"1", "16M", ""}, {"4", "1G", ""}, {"4", "1G", "address-space"}}
	if sanitized {
		configurations = configurations[:3] // AddressSanitizer takes 16 TiB of addresses
	}
	for _, c := range configurations {
		t.Run(c.threads+" with "+c.memory+" "+c.more, func(t *testing.T) {
			t.Parallel()
			t.Logf("TMS_CHAOS_SEED=%s", seed)
			arguments := append([]string{seed, seconds, c.threads, t.TempDir()}, strings.Fields(c.more)...)
			o := runWithin(t, duration+2*time.Minute, program, arguments, "TMS_DEBUG=invariants",
				"CUDASIM_DEVICES=2", "CUDASIM_MEMORY="+c.memory).succeeded(t)
			require.Empty(t, o.findings)
			t.Log(o.stdout)
		})
	}
}
