package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
	"tms/internal/control"
	"tms/internal/sets"
)

var writeAnswers = flag.Bool("write-answers", false, "write what commands answer into testdata/answers")

// The answers of the command, to wrong input above all, are as somebody has read and judged them. Each file is a
// session of a shell, in which P is a process of tms run and TEXT a file that is no trace; a change is written with
// -write-answers, and read before it is committed.
func TestAnswers(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "answers", "*.txt"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	ownSockets(t)
	folder := t.TempDir()
	uses := usual(t)
	library := built(t, "lib", "libtms.so")
	start := exec.Command(tms, "run", "--simulate", "--memory", "256M", "--", steeredProgram(t))
	start.Env = append(os.Environ(), "TMS_LIBRARY="+library, "CUDASIM_SHARED="+filepath.Base(folder))
	process := startToListen(t, start)
	keeper := exec.Command(tms, "keeper")
	require.NoError(t, keeper.Start())
	t.Cleanup(func() { _, _ = keeper.Process.Kill(), keeper.Wait() })
	require.Eventually(t, func() bool {
		_, _, err := sets.Ask(control.SetRequest{Op: control.List}, -1)
		return err == nil
	}, time.Minute, 5*time.Millisecond)
	text := filepath.Join(folder, "text")
	require.NoError(t, os.WriteFile(text, []byte("x = 1\n"), 0o600))
	places := strings.NewReplacer(folder, "/folder", os.Getenv("TMPDIR"), "/sockets", uses, "/program",
		filepath.Dir(filepath.Dir(library)), "/build", tms, "/bin/tms")
	seconds := regexp.MustCompile(`\b\d+\.\d+( s\b)|("seconds":)[\d.e-]+`)
	number := regexp.MustCompile(`\b` + process.number() + `\b`)
	progress := regexp.MustCompile(`(?m)^tms: \w+ing 12345\b.*, \d+ s\n`) // of a command that takes a second or more

	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			if strings.HasPrefix(filepath.Base(file), "thorough-") {
				hermetic.Thorough(t)
			}
			written, err := os.ReadFile(file)
			require.NoError(t, err)
			var script, asked strings.Builder
			for line := range strings.Lines(string(written)) {
				if strings.HasPrefix(line, "#") {
					fmt.Fprintf(&script, "printf '%%s\\n' %s\n", shellQuoted(strings.TrimSpace(line)))
				} else if line, found := strings.CutPrefix(line, "$ "); found {
					line = strings.TrimSpace(line)
					fmt.Fprintf(&asked, "%s\n", line)
					fmt.Fprintf(&script, "printf '\\n$ %%s\\n' %s\n{ %s\n} 2>&1\necho \"exit $?\"\n", shellQuoted(line), line)
				}
			}
			shell := exec.Command("bash", "-c", script.String())
			shell.Dir = folder
			shell.Env = append(os.Environ(), "PATH="+filepath.Dir(tms)+":"+os.Getenv("PATH"), "TMS_LIBRARY="+library,
				"LD_LIBRARY_PATH="+built(t, "sim"), "CUDASIM_SHARED="+filepath.Base(folder), "COLUMNS=80",
				"P="+process.number(), "PROGRAM="+uses, "TEXT="+text)
			answered, err := shell.CombinedOutput()
			require.NoError(t, err)
			got := number.ReplaceAllString(places.Replace(string(answered)), "12345")
			got = progress.ReplaceAllString(seconds.ReplaceAllString(got, "${2}0$1"), "")
			if *writeAnswers {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(written), got)
		})
	}
}
