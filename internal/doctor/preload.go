package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

var comment = regexp.MustCompile(`#.*`)

func preloadFile(path string) []string {
	text, _ := os.ReadFile(path)
	return strings.FieldsFunc(comment.ReplaceAllString(string(text), ""),
		func(c rune) bool { return strings.ContainsRune(" \t\n:", c) })
}

// preloads returns the program's files that its LD_PRELOAD names, in that order. file returns where to open each. A
// process maps them under their own names, with links resolved.
func (p *Program) preloads(file func(string) string) (preloads []*image) {
	for _, entry := range p.Preloaded {
		name, real := filepath.Base(entry), ""
		if path, err := filepath.EvalSymlinks(file(entry)); err == nil && strings.Contains(entry, "/") {
			real = filepath.Base(path)
		}
		for _, i := range p.images {
			if i.base() == name || i.base() == real || i.soname == name {
				preloads = append(preloads, i)
				break
			}
		}
	}
	return preloads
}

// examinePreloads looks for other libraries that interpose CUDA's functions; preloads are in the loader's order.
func (r *Report) examinePreloads(preloads []*image) {
	position := slices.IndexFunc(preloads, (*image).isOurs)
	if position < 0 {
		position = len(preloads)
	}
	for n, i := range preloads {
		switch {
		case i.isOurs() || i.hasName("libtms_reach.so") || i.hasName("libcuda.so") || len(i.definesCUDA) == 0:
		case !i.definesMalloc:
			r.add(Warning, "interposer", fmt.Sprintf("%s is preloaded too and defines %s: what it does with memory "+
				"made in regions is not known", i.path, i.definesCUDA[0]), "preload only one of them")
		case i.isCudart() && n < position && position < len(preloads):
			r.add(Error, "preload", fmt.Sprintf("%s is preloaded before libtms.so, so the program calls its cudaMalloc",
				i.path), "put libtms.so first in LD_PRELOAD")
		case i.isCudart():
		case n < position:
			r.add(Warning, "interposer", i.path+" is preloaded too and defines cudaMalloc: libtms.so sees only what "+
				"it passes on", "preload only one of them, or put libtms.so first in LD_PRELOAD")
		default:
			r.add(Warning, "interposer", i.path+" is preloaded too and defines cudaMalloc: it does not see memory "+
				"made in regions", "preload only one of them")
		}
	}
}
