package vmm

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"tms/internal/aid/guard"
	"tms/vmm/stats"
	"tms/vmm/store"
)

// KnownStats is Stats without a driver call, which would wait while the process is checkpointed. Errors: a thread that
// waits in the driver holds the records.
func (r Records) KnownStats() (held stats.Stats, err error) {
	e := r.engine
	until := time.Now().Add(time.Second)
	silent := errors.New("the statistics cannot be read: a thread waits in the driver, as all of the process's CUDA calls " +
		"do until everything of it is resumed")
	for ; !e.counting.TryLock(); time.Sleep(time.Millisecond) { // another call may still wait for such a thread
		if time.Now().After(until) {
			return held, silent
		}
	}
	type look struct {
		stats.Stats
		error
	}
	done, begun := make(chan look, 1), make(chan bool)
	go func() {
		defer e.counting.Unlock()
		var held stats.Stats
		e.known() // waits while such a thread has the lock
		close(begun)
		err := guard.Call(func() error { held, _ = e.recorded(); return nil })
		done <- look{held, err}
	}()
	select {
	case <-begun: // many tags may take a while
	case <-time.After(time.Until(until)):
		return held, silent
	}
	select {
	case l := <-done:
		return l.Stats, l.error
	case <-time.After(10 * time.Second):
		return held, silent
	}
}

// Recorded is Stats as far as the engine's records go, without a driver call.
func (r Records) Recorded() stats.Stats {
	e := r.engine
	e.counting.Lock()
	defer e.counting.Unlock()
	held, _ := e.recorded()
	return held
}

// Stats reads the statistics. A segment that a pause or resume works on counts as before it. While the program
// allocates and frees, the figures of segments come from different moments.
func (r Records) Stats() (stats.Stats, error) {
	e := r.engine
	e.counting.Lock()
	held, devices := e.recorded()
	e.counting.Unlock()
	for i, d := range devices {
		var err error
		own := &held.Devices[i]
		if own.FreeBytes, err = d.driver.FreeBytes(d.context); err != nil {
			return stats.Stats{}, err
		}
		own.BackupBytes = e.peer.Held(d.ordinal)
		// The figures come from different moments, so their difference may be negative.
		used := own.TotalBytes - own.FreeBytes
		tracked := own.LiveBytes + own.SlackBytes + own.BackupBytes
		own.UntrackedBytes = used - min(used, tracked)
	}
	return held, nil
}

// recorded returns what the records say. The caller holds e.counting.
func (e *Engine) recorded() (stats.Stats, []*device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counted++
	held := stats.Stats{Devices: []stats.Device{}}
	devices := slices.SortedFunc(maps.Values(e.devices), func(x, y *device) int { return x.ordinal - y.ordinal })
	for _, d := range devices {
		held.Devices = append(held.Devices, e.statsOf(d))
	}
	held.Waiting = append(e.driver.Reclaim.Waiting(), e.waitingFrees()...)
	return held, devices
}

// statsOf returns what the records say about a device. The caller holds e.mu, which is released at times.
func (e *Engine) statsOf(d *device) stats.Device {
	of := stats.Device{Device: d.ordinal, UUID: d.uuid, Node: int(d.node.Load()), TotalBytes: d.total,
		LimitRefused: d.quota.Refused, Tags: []stats.Tag{},
		Peers:    append([]string{}, slices.Sorted(maps.Keys(d.near))...),
		Progress: d.readProgress()}
	if t := e.totals[d.ordinal]; t != nil {
		of.Pauses, of.Resumes = t.pauses, t.resumes
	}
	var p pace
	var tags []*stats.Tag
	for _, t := range d.tags {
		p.yield(e, 1)
		ts := &stats.Tag{Tag: stats.TagText(t.name), LastPauseSeconds: t.lastPause, LastResumeSeconds: t.lastResume}
		t.visit(e, &p, func(s *segment) int {
			if s.counted == e.counted {
				return 1
			}
			s.counted = e.counted
			if s.imported != nil {
				if s.state == active {
					ts.ImportedBytes += s.imported.size
				} else if s.imported.lost {
					ts.ImportedLost += s.imported.size
				} else {
					ts.ImportedPaused += s.imported.size
				}
				return 1
			}
			live := s.size
			if s.slab == nil && s.ordered && s.owner == aFree {
				live = 0 // it was freed, and is there for the next allocation
			} else if s.slab == nil {
				ts.Segments++
			} else {
				ts.Segments += s.slab.Live
				live = s.slab.Bytes
			}
			ts.LiveBytes += live
			ts.SlackBytes += s.length() - live
			if s.state != paused || s.owner != aTransition && s.extent != nil {
				ts.PhysicalBytes += s.length()
				of.LiveBytes += live
				of.SlackBytes += s.length() - live
			} else {
				ts.PausedBytes += s.length()
				if s.contents == nil || !s.current {
					ts.WithoutContents += s.length()
				}
			}
			if s.state == active && s.backup == BackupNone && s.pausable() {
				ts.PauseWithoutContents += s.length() - s.dead.Bytes()
			}
			if s.state == active && s.backup == BackupHost && (s.contents == nil || s.contents.Host() == 0) {
				if !s.sparse { // else only the pause finds out
					ts.PauseHostBytes += s.length() - s.dead.Bytes()
				}
			}
			if s.state == active && s.backup == BackupDisk {
				ts.PauseDiskBytes += s.length()
			}
			if s.contents != nil {
				bytes := s.contents.Bytes()
				ts.BackupBytes += bytes
				switch in := s.contents.Store(); {
				case in == e.host, in == e.memory, store.IsReserved(s.contents):
					ts.HostBytes += bytes
				case in == e.disk:
					ts.DiskBytes += bytes
				}
			}
			return 1
		})
		if ts.AllPaused() > 0 {
			ts.PausedSince = t.pausedSince
		}
		bytes := t.slack.Granules() * d.granularity
		ts.SlackBytes += bytes
		ts.PhysicalBytes += bytes
		of.SlackBytes += bytes
		tags = append(tags, ts)
	}
	_ = e.unlocked(func() error { // there may be many
		for _, ts := range tags {
			of.Tags = append(of.Tags, *ts)
		}
		slices.SortFunc(of.Tags, func(x, y stats.Tag) int { return cmp.Compare(x.Tag, y.Tag) })
		return nil
	})
	return of
}

// totals are a device's.
type totals struct{ pauses, resumes stats.Total }

// count adds a pause or resume, which began at start and ended with err, to the totals of its devices.
func (e *Engine) count(batches []*batch, start time.Time, err error, which func(*totals) *stats.Total) {
	e.mu.Lock()
	defer e.mu.Unlock()
	counted := map[*device]bool{}
	for _, b := range batches {
		if e.totals[b.device.ordinal] == nil {
			e.totals[b.device.ordinal] = &totals{}
		}
		t := which(e.totals[b.device.ordinal])
		t.Bytes += b.moved // an unsuccessful pause may have given memory back, too
		if err == nil {
			t.ContentsBytes += b.progress.done.Load()
		}
		if err == nil && !counted[b.device] {
			counted[b.device] = true
			t.Count++
			t.Seconds += time.Since(start).Seconds()
		}
	}
}

// Has returns how many bytes of a device count for the program's limit, paused or not.
func (r Records) Has(ordinal int) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	if d := r.engine.devices[ordinal]; d != nil {
		return d.quota.Promised()
	}
	return 0
}

// HasBy is Has by NVML's UUID. NVML names a part of a GPU by a UUID of its own, and CUDA shows a program one part alone.
func (r Records) HasBy(uuid string) uint64 {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	part := strings.HasPrefix(uuid, "MIG-") && len(r.engine.devices) == 1
	for _, d := range r.engine.devices {
		if d.uuid == uuid || part {
			return d.quota.Promised()
		}
	}
	return 0
}
