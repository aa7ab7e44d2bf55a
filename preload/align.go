package main

// #include "shim.h"
import "C"

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"tms/internal/control"
	"tms/vmm/cuda"
)

// A consistent cut of NCCL's ranks: all have begun the same collectives before the gate stops them, so that no rank
// waits on a device for one that stopped earlier. The gate holds back the ranks that are ahead (gate/reach/sequence.c);
// the command sees all ranks, and tells each how far to go (internal/group/align.go).

// align holds this process back as the request says, and returns how far it has come. Errors: cuda.Refusal.
func (t *task) align() (*control.Alignment, error) {
	if words := C.gate_unusable(); words != nil {
		return nil, cuda.Refuse(cuda.NotSupported, "%s", C.GoString(words))
	}
	t.process.gate.Lock()
	closed := t.process.gate.closed
	t.process.gate.Unlock()
	if closed {
		return nil, cuda.Refuse(cuda.NotReady, "the program's threads are stopped already, for another pause")
	}
	if t.Request.Targets == nil {
		C.nccl_freeze()
	} else {
		targets := make([]C.struct_gate_sequence, 0, len(t.Request.Targets))
		for name, target := range t.Request.Targets {
			s, err := sequenceNamed(name)
			if err != nil {
				return nil, err
			}
			s.number = C.uint64_t(target)
			targets = append(targets, s)
		}
		C.nccl_limit(&targets[0], C.size_t(len(targets)))
	}
	var found control.Alignment
	var wanted bool
	poll(time.Now().Add(control.Seconds(t.Request.Wait)), func() bool {
		found, wanted = aligned(t.Request.Targets)
		return found.Reached || wanted || t.Withdrawn()
	})
	return &found, nil
}

// aligned compares how far this process is with targets. It asks last about collectives that have begun and are not
// launched yet, so that it overlooks none.
func aligned(targets map[string]uint64) (found control.Alignment, wanted bool) {
	found.Reached, found.Captured = true, bool(C.nccl_has_captured())
	found.Sequences = []control.Sequence{}
	at := map[string]int{}
	var cursor C.size_t
	var s C.struct_gate_sequence
	for C.nccl_sequences(&cursor, &s) {
		name := sequenceName(&s)
		begun, one := uint64(s.number), bool(s.wanted)
		if target, is := targets[name]; is && begun != target {
			found.Reached = false
		}
		wanted = wanted || one
		if begun == 0 && !one && s.from >= 0 {
			continue
		}
		i, is := at[name]
		if !is {
			i = len(found.Sequences)
			at[name] = i
			found.Sequences = append(found.Sequences, control.Sequence{Name: name, Ranks: int(s.ranks)})
		}
		all := &found.Sequences[i]
		all.Here++
		all.Begun, all.Wanted = max(all.Begun, begun), all.Wanted || one
	}
	found.Reached = found.Reached && !bool(C.nccl_is_launching())
	return found, wanted
}

func sequenceName(s *C.struct_gate_sequence) string {
	if s.from < 0 {
		return cliqueName(s.clique)
	}
	return fmt.Sprintf("%s:%d:%d", cliqueName(s.clique), s.from, s.to)
}

// sequenceNamed is the inverse of sequenceName. Errors: cuda.Refusal.
func sequenceNamed(name string) (s C.struct_gate_sequence, err error) {
	words := strings.Split(name, ":")
	clique, err := strconv.ParseUint(words[0], 16, 64)
	ranks := [2]int64{-1, -1}
	for i := 1; i < len(words) && len(words) == 3 && err == nil; i++ {
		ranks[i-1], err = strconv.ParseInt(words[i], 10, 32)
	}
	if err != nil || len(words) != 1 && len(words) != 3 || (ranks[0] < 0 || ranks[1] < 0) && len(words) == 3 {
		return s, cuda.Refuse(cuda.InvalidValue, "%.100q is no name of a sequence, such as an align tells", name)
	}
	s.clique, s.from, s.to = C.uint64_t(clique), C.int(ranks[0]), C.int(ranks[1])
	return s, nil
}
