// Package calls says what tms does about each function of CUDA and NVML (classes.txt), and makes the tables in C that
// the libraries are built from.
package calls

import (
	_ "embed"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

//go:generate go run ./generate ../..

//go:embed functions.txt
var functionsText string

//go:embed classes.txt
var classesText string

// Function is a symbol that a header declares.
type Function struct {
	Symbol string
	// Name is the symbol without a version and without _ptsz or _ptds.
	Name   string
	Header string
	// Since is the CUDA version that brought it, as 12040 for 12.4, or 0 if the headers do not say.
	Since int
	// First and Last are the headers' versions that declare it.
	First, Last string
	Types       []string
	// Classes are the sections of classes.txt that have it.
	Classes []string
}

// Is reports whether the function has one of the classes.
func (f Function) Is(classes ...string) bool {
	return slices.ContainsFunc(classes, func(class string) bool { return slices.Contains(f.Classes, class) })
}

// class is a section of classes.txt.
type class struct {
	name, reason string
	patterns     []string
}

var suffix = regexp.MustCompile(`(_v\d+)?(_ptsz|_ptds)?$`)

// parseFunctions reads functions.txt.
func parseFunctions(text string) ([]Function, error) {
	var functions []Function
	header := ""
	line := regexp.MustCompile(`^(\w+) (\d+|-) ([\d.]+)-([\d.]+) \((.*)\)$`)
	for text := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		if strings.HasPrefix(text, "#") {
			continue
		}
		if strings.HasPrefix(text, "[") {
			header = strings.Trim(text, "[]")
			continue
		}
		found := line.FindStringSubmatch(text)
		if found == nil {
			return nil, fmt.Errorf("functions.txt: what is %q?", text)
		}
		since, _ := strconv.Atoi(found[2])
		f := Function{Symbol: found[1], Name: suffix.ReplaceAllString(found[1], ""), Header: header, Since: since,
			First: found[3], Last: found[4]}
		if found[5] != "" {
			f.Types = strings.Split(found[5], ", ")
		}
		functions = append(functions, f)
	}
	return functions, nil
}

// parseClasses reads classes.txt.
func parseClasses(text string) ([]class, error) {
	var classes []class
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "["):
			name, reason, _ := strings.Cut(line[1:], "]")
			classes = append(classes, class{name: name, reason: strings.TrimSpace(reason)})
		case len(classes) == 0:
			return nil, fmt.Errorf("classes.txt: %q stands before the first class", line)
		case strings.HasPrefix(line, "\t"):
			classes[len(classes)-1].reason += " " + strings.TrimSpace(line)
		default:
			last := &classes[len(classes)-1]
			last.patterns = append(last.patterns, strings.Fields(line)...)
		}
	}
	return classes, nil
}

// Load returns all functions with their classes. An error names what classes.txt lacks, or has too much.
func Load() ([]Function, error) { return load(functionsText, classesText) }

func load(functionsText, classesText string) ([]Function, error) {
	functions, err := parseFunctions(functionsText)
	if err != nil {
		return nil, err
	}
	classes, err := parseClasses(classesText)
	if err != nil {
		return nil, err
	}
	var problems []string
	whole, patterns := map[string][]string{}, map[string][]string{}
	matched := map[string]bool{}
	for _, c := range classes {
		if c.reason == "" || len(c.patterns) == 0 {
			problems = append(problems, fmt.Sprintf("class %s has no reason, or no function", c.name))
		}
		for _, pattern := range c.patterns {
			to := whole
			if strings.Contains(pattern, "*") {
				to = patterns
			}
			if slices.Contains(to[pattern], c.name) {
				problems = append(problems, fmt.Sprintf("class %s names %s twice", c.name, pattern))
			}
			to[pattern] = append(to[pattern], c.name)
		}
	}
	for i := range functions {
		f := &functions[i]
		f.Classes = whole[f.Name]
		matched[f.Name] = true
		var by []string // the longest patterns
		for pattern := range patterns {
			if ok, _ := path.Match(pattern, f.Name); !ok || whole[f.Name] != nil {
				continue
			}
			if len(by) > 0 && len(pattern) > len(by[0]) {
				by = nil
			}
			if len(by) == 0 || len(pattern) == len(by[0]) {
				by = append(by, pattern)
			}
		}
		for _, pattern := range by {
			f.Classes = patterns[pattern]
			matched[pattern] = true
		}
		switch {
		case len(by) > 1:
			problems = append(problems, fmt.Sprintf("%s is matched by %s", f.Symbol, strings.Join(by, " and ")))
		case len(f.Classes) == 0:
			problems = append(problems, fmt.Sprintf("%s (of %s %s) has no class", f.Symbol, f.Header, f.First))
		case f.Is("harmless") && len(f.Classes) > 1:
			problems = append(problems, fmt.Sprintf("%s is harmless, and %s", f.Symbol, strings.Join(f.Classes, ", ")))
		}
	}
	for _, c := range classes {
		for _, pattern := range c.patterns {
			if !matched[pattern] {
				problems = append(problems, fmt.Sprintf("class %s: no function is named %s", c.name, pattern))
			}
		}
	}
	if problems != nil {
		return functions, fmt.Errorf("classes.txt: %s", strings.Join(problems, "\n"))
	}
	return functions, nil
}
