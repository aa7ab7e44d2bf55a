package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// examineLoading looks at what the kernel and the loader do with the file itself. It returns false if nothing else
// matters then.
func (r *Report) examineLoading(main *image) bool {
	switch {
	case main.loader == "" && main.program:
		what := main.path + " is statically linked"
		if main.fromGo {
			what = main.path + " is a Go program built without cgo"
		}
		r.add(Error, "static", what+": no dynamic loader runs, and LD_PRELOAD does nothing",
			"link it dynamically (a Go program: use cgo, CGO_ENABLED=1)")
		return false
	case main.architecture() != r.libraryArchitecture():
		r.add(Error, "architecture", fmt.Sprintf("%s is for %s, libtms.so is for %s", main.path, main.architecture(),
			r.libraryArchitecture()), "use a program and a libtms.so of the same architecture")
		return false
	case !main.program:
		r.add(Note, "program", main.path+" is a library: examined as a part of the program that will load it", "")
		return true
	}
	base := filepath.Base(main.loader)
	if !strings.HasPrefix(base, "ld-linux") && !strings.HasPrefix(base, "ld64.so") {
		what := "another C library's"
		if strings.HasPrefix(base, "ld-musl") {
			what = "musl's"
		}
		r.add(Error, "libc", fmt.Sprintf("its loader is %s (%s); libtms.so and CUDA need glibc", what, main.loader),
			"use a build of the program for glibc (in containers: an image that is not Alpine)")
		return false
	}
	if _, err := os.Stat(main.loader); err != nil && r.Program.PID == 0 {
		r.add(Error, "libc", fmt.Sprintf("its loader %s is not on this machine", main.loader),
			"run this where the program runs, in its container for instance")
		return false
	}
	return true
}

// examineSecureExecution: the loader ignores LD_PRELOAD entries with a slash in programs that run with more rights than
// their user (ld.so(8), "secure-execution mode"). cap_bprm_creds_from_file in security/commoncap.c shows when the
// kernel sets that mode.
func (r *Report) examineSecureExecution(path string) {
	var status unix.Stat_t
	if unix.Stat(path, &status) != nil {
		return
	}
	var mount unix.Statfs_t
	if unix.Statfs(path, &mount) == nil && mount.Flags&unix.ST_NOSUID != 0 {
		return // the bits have no effect there
	}
	if set, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && set == 1 {
		return // nor under no_new_privs, as in some containers
	}
	const advice = "run a copy without it: cp keeps neither the bits nor capabilities"
	report := func(what string, here bool) {
		severity, when := Note, "when another user starts it"
		if here {
			severity, when = Error, "(secure-execution mode)"
		}
		r.add(severity, "secure", fmt.Sprintf("%s has %s: the loader ignores LD_PRELOAD=/path %s", path, what, when),
			advice)
	}
	if status.Mode&unix.S_ISUID != 0 {
		report("the setuid bit", int(status.Uid) != os.Getuid())
	}
	if status.Mode&unix.S_ISGID != 0 && status.Mode&unix.S_IXGRP != 0 {
		report("the setgid bit", int(status.Gid) != os.Getgid())
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 {
		report("file capabilities", os.Getuid() != 0)
	}
}
