package release

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// LibraryPaths returns the paths at which libtms.so may lie for the command at a path: beside the command; where
// scripts/build.sh puts it; in the folder of pip install --target; in the site-packages of the command's prefix, which
// may be a virtual environment, an environment of conda, or ~/.local. If several Pythons of the prefix have the
// package, the one of the command's version comes first.
func LibraryPaths(command string) []string {
	folder := filepath.Dir(command)
	prefix := filepath.Dir(folder)
	packages, _ := fs.Glob(os.DirFS(prefix), "lib*/python*/*-packages/tms/lib/libtms.so")
	other := func(path string) int {
		site := filepath.Join(prefix, path, "..", "..", "..")
		if _, err := os.Stat(filepath.Join(site, "libtms-"+Version+".dist-info")); err != nil {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(packages, func(a, b string) int { return other(a) - other(b) })
	paths := []string{filepath.Join(folder, "libtms.so")}
	for _, path := range append([]string{"lib/libtms.so", "tms/lib/libtms.so"}, packages...) {
		paths = append(paths, filepath.Join(prefix, path))
	}
	return paths
}
