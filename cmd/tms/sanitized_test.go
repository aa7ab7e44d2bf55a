package main

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// suppressions are for ThreadSanitizer, which sees the library's calls of malloc, free and strcmp, but not its atomic
// operations (docs/cli.md).
const suppressions = "race:libtms.so\nrace:libtms_reach.so\n"

// A program may be built with a sanitizer, whose runtime interposes functions too and has signal handlers, threads and
// memory of its own. It is paused at work, and the sanitizer finds nothing.
func TestProgramsUnderSanitizers(t *testing.T) {
	hermetic.Thorough(t)
	for sanitizer, library := range map[string]string{
		"address": "libasan.so", "thread": "libtsan.so", "undefined": "libubsan.so",
	} {
		t.Run(sanitizer, func(t *testing.T) {
			requireSanitizer(t, library)
			ownSockets(t)
			program := fixture(t, "steered", "-g", "-fsanitize="+sanitizer)
			reports := filepath.Join(t.TempDir(), "report")
			suppressed := filepath.Join(t.TempDir(), "suppressions")
			require.NoError(t, os.WriteFile(suppressed, []byte(suppressions), 0o600))
			c := exec.Command(tms, "run", "--", program)
			c.Env = append(os.Environ(), "TMS_LIBRARY="+built(t, "lib", "libtms.so"), "LD_LIBRARY_PATH="+built(t, "sim"),
				"CUDASIM_MEMORY=256M", "LD_PRELOAD=", "ASAN_OPTIONS=log_path="+reports, "UBSAN_OPTIONS=log_path="+reports,
				"TSAN_OPTIONS=log_path="+reports+":suppressions="+suppressed)
			s := startToListen(t, c)
			s.do("work")
			for range 3 {
				require.Contains(t, succeeds(t, "pause", s.number()), s.number()+": paused")
				before := s.do("cycles")
				require.Contains(t, succeeds(t, "resume", s.number()), s.number()+": resumed")
				require.Eventually(t, func() bool { return s.do("cycles") != before }, time.Minute, 5*time.Millisecond)
			}
			s.do("calm")
			require.Equal(t, "ok", s.do("check"))
			require.NoError(t, s.say.(io.Closer).Close())
			ended := s.Wait()
			found, err := filepath.Glob(reports + "*")
			require.NoError(t, err)
			for _, report := range found {
				text, err := os.ReadFile(report)
				require.NoError(t, err)
				t.Errorf("%s", text)
			}
			require.NoError(t, ended)
		})
	}
}

// requireSanitizer skips the test where gcc has no such library.
func requireSanitizer(t *testing.T, library string) {
	t.Helper()
	found, err := exec.Command("gcc", "-print-file-name="+library).Output()
	require.NoError(t, err)
	if !filepath.IsAbs(strings.TrimSpace(string(found))) {
		hermetic.Missing(t, library)
	}
}

// AddressSanitizer wants to be the first library.
func TestRunOfASanitizedProgram(t *testing.T) {
	requireSanitizer(t, "libasan.so")
	source := filepath.Join(t.TempDir(), "sanitized.c")
	require.NoError(t, os.WriteFile(source, []byte("int main(void) { return 7; }\n"), 0o600))
	_, err := under(t, "--", hermetic.Compile(t, "sanitized", "-fsanitize=address", source))
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 7, exit.ExitCode())
}
