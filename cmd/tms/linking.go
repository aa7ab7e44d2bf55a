package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// linking returns what a C program is compiled with, linked with, or both: what preload/linking/pkgconfig says, too.
// libtms.so lies outside the loader's folders, so the program gets the path. A linker that leaves out libraries must keep
// the libcudart that follows, although libtms.so has all of its functions that the program calls.
func linking(library string, compiled, linked bool) (string, error) {
	folder := filepath.Dir(library)
	if header := filepath.Join(folder, "tms.h"); !isFile(header) {
		return "", fmt.Errorf("%s is not there, so no program can be compiled for %s: set TMS_LIBRARY to a libtms.so that "+
			"has it beside it", header, library)
	}
	var words []string
	if compiled {
		words = append(words, "-I"+folder)
	}
	if linked {
		words = append(words, "-L"+folder, "-Wl,-rpath,"+folder, "-ltms", "-Wl,--no-as-needed")
	}
	for i, word := range words {
		words[i] = shellQuoted(word)
	}
	return strings.Join(words, " "), nil
}
