package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{"60": time.Minute, "60s": time.Minute, "1m": time.Minute,
		"0.5": time.Second / 2, "1m30s": 90 * time.Second, "8760h": longest, "31536000": longest} {
		var d duration
		require.NoError(t, d.Set(text), text)
		require.Equal(t, want, d.Duration, text)
		require.NoError(t, d.Set(d.String()), text)
		require.Equal(t, want, d.Duration, text)
	}
	require.Equal(t, "5m", (&duration{Duration: 5 * time.Minute}).String())
}

// Every flag that takes a time takes the same, and refuses the same with the same words.
func TestTimes(t *testing.T) {
	ownSockets(t)
	for line, least := range map[string]string{"pause 999999999 --timeout": "0s", "resume 999999999 --wait": "0s",
		"swap 999999998 999999999 --timeout": "0s", "swap 999999998 999999999 --wait": "0s",
		"record 999999999 --for": "1ms", "idle 999999999 --after": "50ms"} {
		words := strings.Fields(line)
		for _, given := range []string{"60", "60s", "1m", "0.5"} {
			_, _, code := command(t, append(slices.Clone(words), given)...)
			require.Equal(t, exitNoProcess, code, "%s %s", line, given)
		}
		for _, given := range []string{"x", "-1", "-1s", "NaN", "Inf", "1e300", "8761h", "1y", "60 s", ""} {
			var out, said bytes.Buffer
			require.Equal(t, exitUsage, run(append(slices.Clone(words), given), &out, &said), "%s %s", line, given)
			require.Equal(t, "tms: "+words[len(words)-1]+" "+given+": give a time from "+least+" to a year, such as "+
				"60, 90s, 10m or 2h; see tms "+words[0]+" --help\n", said.String())
		}
	}
	var out, said bytes.Buffer
	require.Equal(t, exitUsage, run([]string{"idle", "1", "--after", "1ms"}, &out, &said))
	require.Contains(t, said.String(), "--after 1ms: give a time from 50ms to a year")
}
