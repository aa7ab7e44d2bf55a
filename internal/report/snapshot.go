package report

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// snapshot is what torch.cuda.memory._snapshot() returns, as far as it tells where segments were allocated.
type snapshot struct {
	Segments []struct {
		Address uint64  `json:"address"`
		Frames  []frame `json:"frames"`
		Blocks  []struct {
			Size   uint64  `json:"size"`
			Frames []frame `json:"frames"`
		} `json:"blocks"`
	} `json:"segments"`
	Traces [][]struct {
		Action  string  `json:"action"`
		Address uint64  `json:"addr"`
		Frames  []frame `json:"frames"`
	} `json:"device_traces"`
}

type frame struct {
	File string `json:"filename"`
	Line int    `json:"line"`
	Name string `json:"name"`
}

// mostFrames of a stack are shown, the innermost first.
const mostFrames = 8

// readSnapshot returns the stack by which each segment was allocated, by its address. What PyTorch has recorded of that
// comes before the stack of the largest block in it.
func readSnapshot(path string) (map[uint64]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var s snapshot
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("%s: it is no snapshot of PyTorch's in JSON: %w; write one by json.dump(torch.cuda.memory._snapshot(), file)", path, err)
	}
	found := map[uint64]string{}
	note := func(address uint64, frames []frame) {
		if words := stack(frames); words != "" {
			found[address] = words
		}
	}
	for _, segment := range s.Segments {
		largest := uint64(0)
		for _, b := range segment.Blocks {
			if b.Size > largest && len(b.Frames) > 0 {
				largest = b.Size
				note(segment.Address, b.Frames)
			}
		}
		note(segment.Address, segment.Frames)
	}
	for _, device := range s.Traces {
		for _, t := range device {
			if t.Action == "segment_alloc" || t.Action == "segment_map" {
				note(t.Address, t.Frames)
			}
		}
	}
	return found, nil
}

func stack(frames []frame) string {
	var lines []string
	for _, f := range frames {
		if strings.HasSuffix(f.File, ".py") && len(lines) < mostFrames {
			lines = append(lines, fmt.Sprintf("%s (%s:%d)", f.Name, f.File, f.Line))
		}
	}
	return strings.Join(lines, "\n")
}
