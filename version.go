// Package release knows the version of a release, that of libtms.so, of the command and of the Python distribution, and
// where an installed command finds libtms.so.
package release

import (
	_ "embed"
	"regexp"
)

//go:embed pymodule/tms/_version.py
var source string

// Version is written in pymodule/tms/_version.py alone; scripts/build.sh hands it to libtms.so from there.
var Version = regexp.MustCompile(`(?m)^version = "(.+)"$`).FindStringSubmatch(source)[1]
