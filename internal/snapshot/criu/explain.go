package criu

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// reasons says in words what CRIU's errors mean, the first that fits.
var reasons = []struct {
	pattern *regexp.Regexp
	words   string // $1 is the first group
}{
	{regexp.MustCompile(`Can't fork for (\d+): File exists`), "the number $1 belongs to another process here: end that process"},
	{regexp.MustCompile(`File (\S+) has bad size`), "$1 has another size than at the snapshot: put it back as it was, or " +
		"have the program write such files elsewhere"},
	{regexp.MustCompile(`Can't open file (\S+) on restore: No such file`), "$1 is not here, which the program had open"},
	{regexp.MustCompile(`(?:can't|Can't) (?:open|stat) (?:file )?(\S+).*No such file`), "$1 is not here, which the program " +
		"had open"},
	{regexp.MustCompile(`Connected TCP socket, consider`), "it has a TCP connection"},
	{regexp.MustCompile(`External socket is used|external unix|Can't dump half of stream unix connection`), "it is " +
		"connected to a program outside of its tree by a Unix socket: give the number of the process that has both ends, or " +
		"have it close the connection first"},
	{regexp.MustCompile(`Don't have tty to inherit`), "the program had a terminal: run tms restore in one"},
	{regexp.MustCompile(`A shell job|session leader|shell-job`), "it belongs to a terminal or to another's session"},
	{regexp.MustCompile(`Can't dump (?:file|char|chr)?.*(/dev/nvidia\S*)`), "it still has $1 open: the driver has not taken " +
		"all of it"},
	{regexp.MustCompile(`Found io_uring|io_uring`), "it uses io_uring, which CRIU does not dump: start it again " +
		"by tms run --no-io-uring"},
	{regexp.MustCompile(`Can't lookup mount=\d+ for fd=\S+ path=(\S+)`), "$1 is on a mount that is not its own: run the " +
		"command in its container"},
	{regexp.MustCompile(`Unlinked file (\S+)|ghost file .*?(\S+)`), "a deleted file that it has open is too large ($1)"},
	{regexp.MustCompile(`Can't link remap to (\S+): File exists`), "beside $1, which has another name by now, a file " +
		"link_remap.N has the name that CRIU needs: restore the snapshot of an earlier dump that has left it, or remove it"},
	{regexp.MustCompile(`No space left on device`), "the disk is full"},
	{regexp.MustCompile(`(?:Operation not permitted|EPERM|Permission denied)`), "CRIU has not the rights: run it as root, or " +
		"with CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE"},
}

// explain returns CRIU's reason, as its log has it, and what that means if that is known.
func explain(log, output string) error {
	text, _ := os.ReadFile(log)
	lines := errorsOf(string(text))
	if len(lines) == 0 {
		lines = errorsOf(output)
	}
	if len(lines) == 0 {
		lines = []string{strings.TrimSpace(output)}
	}
	for _, reason := range reasons {
		for _, line := range lines {
			if found := reason.pattern.FindStringSubmatchIndex(line); found != nil {
				words := reason.pattern.ExpandString(nil, reason.words, line, found)
				return fmt.Errorf("%s (CRIU: %s; all of it is in %s)", words, line, log)
			}
		}
	}
	return fmt.Errorf("CRIU refuses: %s (all of it is in %s)", lines[0], log)
}

// errorsOf lists the errors in CRIU's words, without those that it goes on after.
func errorsOf(log string) (lines []string) {
	for line := range strings.Lines(log) {
		_, words, is := strings.Cut(line, "Error (")
		_, words, of := strings.Cut(words, "): ")
		if is && of && !strings.Contains(words, "rlimit: Can't setup RLIMIT_NOFILE") {
			lines = append(lines, strings.TrimSpace(words))
		}
	}
	return lines
}
