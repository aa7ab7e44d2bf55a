package main

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tms/internal/aid/hermetic"
)

// callGraph is what gcc knows of calls in our C: each function's share of the stack, and the functions that it calls.
type callGraph struct {
	frames map[string]int
	calls  map[string][]string
	deep   map[string]int // what was found
}

const anyFunction = "__indirect_call" // gcc's name for a call by a pointer

// pointers are the function pointers whose functions are known; "" stands for one of the C library's.
var pointers = map[string]string{"forward_next": "", "find_in": "", "handlers_arm": "", "start_helper": "",
	"region_report_environment": "error_log",
	"region_load_environment":   "../region/environment.c:take_debug",
	"caller_library":            "", // _dl_find_object
	"go_start":                  "load.c:awake"}

// deepest returns how much of the stack a function and what it calls use at a time, without the C library's share.
func (g *callGraph) deepest(function string) int {
	if known, ok := g.deep[function]; ok {
		return known
	}
	g.deep[function] = 0 // it calls itself
	below := 0
	for _, called := range g.calls[function] {
		below = max(below, g.deepest(called))
	}
	g.deep[function] = g.frames[function] + below
	return g.deep[function]
}

// chain returns the calls that lead to that depth.
func (g *callGraph) chain(function string) string {
	words := fmt.Sprint(function, " ", g.frames[function])
	for _, called := range g.calls[function] {
		if g.deepest(called) > 0 && g.frames[function]+g.deepest(called) == g.deepest(function) {
			return words + ", " + g.chain(called)
		}
	}
	return words
}

// readGraph compiles one file of C.
func readGraph(t *testing.T, g *callGraph, file, headers, folder string) {
	output := filepath.Join(folder, strings.ReplaceAll(strings.TrimPrefix(file, "../"), "/", "_"))
	text, err := exec.Command("gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden",
		"-fcallgraph-info=su", "-isystem", headers, "-I.", "-I../region", "-I../forward",
		"-c", "-o", output+".o", file).CombinedOutput()
	require.NoError(t, err, "%s", text)
	graph, err := os.Open(output + ".ci")
	require.NoError(t, err)
	defer graph.Close()
	node := regexp.MustCompile(`^node: \{ title: "([^"]+)" label: "[^"]*\\n(\d+) bytes \((\w+(?:,bounded)?)\)`)
	edge := regexp.MustCompile(`^edge: \{ sourcename: "([^"]+)" targetname: "([^"]+)"`)
	for lines := bufio.NewScanner(graph); lines.Scan(); {
		if found := node.FindStringSubmatch(lines.Text()); found != nil {
			require.NotEqual(t, "dynamic", found[3], "%s has a frame of no certain size", found[1])
			g.frames[found[1]], err = strconv.Atoi(found[2])
			require.NoError(t, err)
			g.frames[found[1]] += 8 // the return address
		} else if found := edge.FindStringSubmatch(lines.Text()); found != nil {
			for caller, called := range pointers {
				if found[2] == anyFunction && strings.Contains(found[1], caller) {
					found[2] = called
				}
			}
			g.calls[found[1]] = append(g.calls[found[1]], found[2])
		}
	}
}

// A host's coroutines and threads may have small stacks: what our C uses before Go's own stack and before CUDA is
// little. Here all C is compiled with warnings as errors.
func TestStackOfOurC(t *testing.T) {
	hermetic.Thorough(t)
	const most = 2 << 10 // bytes
	if sanitized {
		t.Skip("a sanitizer makes frames larger")
	}
	headers, folder := t.TempDir(), t.TempDir()
	goFiles, err := exec.Command("sh", "-c", `grep -l '^import "C"' *.go`).Output()
	require.NoError(t, err)
	arguments := append([]string{"tool", "cgo", "-objdir", headers, "--", "-std=gnu11", "-I../region", "-I../forward",
		"-I."},
		strings.Fields(string(goFiles))...)
	output, err := exec.Command("go", arguments...).CombinedOutput()
	require.NoError(t, err, "%s", output)

	graph := func(patterns ...string) *callGraph {
		g := &callGraph{map[string]int{}, map[string][]string{}, map[string]int{}}
		for _, pattern := range patterns {
			files, err := filepath.Glob(pattern)
			require.NoError(t, err)
			for _, file := range files {
				readGraph(t, g, file, headers, folder)
			}
		}
		require.Greater(t, len(g.frames), 100)
		return g
	}
	ours := graph("*.c", "goruntime/*.c", "gate/*.c", "watch/*.c", "../region/*.c", "../forward/*.c")
	reach := graph("gate/reach/*.c")
	// Our pointers lead to CUDA by way of libtms_reach.so, and the first time by way of the code that looks for it; its
	// own lead to CUDA, or to libtms.so's answer for dlsym.
	reach.deep[anyFunction] = max(ours.deepest("tms_driver_function"), ours.deepest("make_room"))
	gated := 0
	for function := range reach.frames {
		gated = max(gated, reach.deepest(function))
	}
	ours.deep = map[string]int{anyFunction: gated}
	looking := gated
	for function := range ours.frames {
		if strings.Contains(function, ":first_") {
			looking = max(looking, ours.deepest(function))
		}
	}
	ours.deep = map[string]int{anyFunction: looking}
	for _, g := range []*callGraph{ours, reach} {
		deepest := slices.MaxFunc(slices.Collect(maps.Keys(g.frames)),
			func(a, b string) int { return cmp.Compare(g.deepest(a), g.deepest(b)) })
		t.Log(g.deepest(deepest), g.chain(deepest))
		require.LessOrEqual(t, g.deepest(deepest), most)
	}
}

func TestSmallStacks(t *testing.T) {
	if sanitized {
		t.Skip("a sanitizer makes frames larger")
	}
	program := compile(t, "coroutines", majors[1])
	for _, environment := range usedAndNot(t) {
		run(t, program, nil, environment...).succeeded(t)
	}
}
