package report

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// snapshot is the part of torch.cuda.memory._snapshot()'s result that shows where segments were allocated.
type snapshot struct {
	Segments []struct {
		Address uint64  `json:"address"`
		Size    uint64  `json:"total_size"`
		Frames  []frame `json:"frames"`
		Blocks  []struct {
			Size   uint64  `json:"size"`
			Frames []frame `json:"frames"`
		} `json:"blocks"`
	} `json:"segments"`
	Traces [][]struct {
		Action  string  `json:"action"`
		Address uint64  `json:"addr"`
		Size    uint64  `json:"size"`
		Frames  []frame `json:"frames"`
	} `json:"device_traces"`
}

type frame struct {
	File string `json:"filename"`
	Line int    `json:"line"`
	Name string `json:"name"`
}

// mostFrames is the most frames shown of a stack, the innermost first.
const mostFrames = 8

// stacks are PyTorch's recorded stacks, each for a range of addresses. A later one wins.
type stacks []placed

type placed struct {
	address, size uint64
	words         string
}

// of returns the stack that allocated the memory at an address; "": unknown. PyTorch maps an expandable segment in
// pieces, but reports it as one.
func (s stacks) of(address uint64) string {
	for i := len(s) - 1; i >= 0; i-- {
		if address >= s[i].address && address-s[i].address < s[i].size {
			return s[i].words
		}
	}
	return ""
}

// readSnapshot returns the stacks that allocated segments. PyTorch's record of that wins over the stack of a segment's
// largest block.
func readSnapshot(path string) (stacks, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: it is no snapshot of PyTorch's in JSON: %w; write one by "+
			"json.dump(torch.cuda.memory._snapshot(), file)", path, err)
	}
	var found stacks
	note := func(address, size uint64, frames []frame) {
		if words := stack(frames); words != "" {
			found = append(found, placed{address, size, words})
		}
	}
	for _, segment := range s.Segments {
		largest := uint64(0)
		for _, b := range segment.Blocks {
			if b.Size > largest && len(b.Frames) > 0 {
				largest = b.Size
				note(segment.Address, segment.Size, b.Frames)
			}
		}
		note(segment.Address, segment.Size, segment.Frames)
	}
	for _, device := range s.Traces {
		for _, t := range device {
			if t.Action == "segment_alloc" || t.Action == "segment_map" {
				note(t.Address, t.Size, t.Frames)
			}
		}
	}
	return found, nil
}

// stack returns the frames of Python. Frames of C++ have files of other names, "??" or "".
func stack(frames []frame) string {
	var lines []string
	for _, f := range frames {
		// <string> is python -c, <stdin> a prompt; the names of a notebook's cells end like a file's, or begin so.
		python := strings.HasSuffix(f.File, ".py") || strings.HasPrefix(f.File, "<")
		if python && len(lines) < mostFrames {
			lines = append(lines, fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line))
		}
	}
	return strings.Join(lines, "\n")
}
