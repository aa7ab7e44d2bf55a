package doctor

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

func preloadFile(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	var entries []string
	for _, line := range strings.Split(string(text), "\n") {
		line, _, _ = strings.Cut(line, "#")
		entries = append(entries, strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' || c == ':' })...)
	}
	return entries
}

// findPreloads are the files that the loader would preload, in its order.
func (r *Report) findPreloads(l *loader) (found []*image) {
	for _, entry := range r.Program.Preloaded {
		if i := l.find(entry, &loaded{image: l.main}); i != nil {
			found = append(found, i)
			continue
		}
		r.add(Warning, "preload", fmt.Sprintf("LD_PRELOAD (or /etc/ld.so.preload) names %s, which the loader would not find or could not use", entry),
			"correct the path: the loader goes on without it")
	}
	return found
}

// examples names the first of them.
func examples(functions []string) string {
	slices.Sort(functions)
	if len(functions) > 2 {
		return fmt.Sprintf("%s and %d more of CUDA's functions", functions[0], len(functions)-1)
	}
	return strings.Join(functions, " and ")
}

// examinePreloads looks for others who interpose CUDA's functions; preloads are in the loader's order.
func (r *Report) examinePreloads(preloads []*image) {
	position := len(preloads)
	for n := len(preloads) - 1; n >= 0; n-- {
		if preloads[n].isOurs() {
			position = n
		}
	}
	for n, i := range preloads {
		switch {
		case i.isOurs() || i.isDriver() || len(i.definesCUDA) == 0:
		case !i.definesMalloc:
			r.add(Warning, "interposer", fmt.Sprintf("%s is preloaded too and defines %s: what it does with memory made in regions is not known",
				i.path, examples(i.definesCUDA)), "preload only one of them")
		case i.isCudart() && n < position && position < len(preloads):
			r.add(Error, "preload", fmt.Sprintf("%s is preloaded before libtms.so, so its cudaMalloc is the one that is called", i.path),
				"put libtms.so first in LD_PRELOAD")
		case i.isCudart():
		case n < position:
			r.add(Warning, "interposer", i.path+" is preloaded too and defines cudaMalloc: libtms.so sees only what it passes on",
				"preload only one of them, or put libtms.so first in LD_PRELOAD")
		default:
			r.add(Warning, "interposer", i.path+" is preloaded too and defines cudaMalloc: it does not see memory made in regions",
				"preload only one of them")
		}
	}
}
