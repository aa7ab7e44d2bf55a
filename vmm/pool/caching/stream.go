package caching

import (
	"errors"
	"fmt"
	"slices"

	"tms/vmm/pool"
)

// queue holds the events that were recorded in a stream, the oldest first: one that is not done does
// not hold up those of other streams.
type queue struct {
	stream  pool.Stream
	waiting []waiting
}

type waiting struct {
	event pool.Event
	block handle
}

// RecordStream is pool.StreamRecorder.RecordStream. Over a source without events a block that other
// streams have used is not used again once freed: it waits for all of its segment to be freed, and
// goes with it at the next Trim or shortage, as giving memory back waits for the device (cudaFree).
func (p *Pool) RecordStream(address uintptr, stream pool.Stream) error {
	if address == 0 {
		return nil
	}
	p.Lock()
	defer p.Unlock()
	h, err := p.table.Find(address)
	if err != nil {
		return err
	}
	if b := p.at(h); stream != p.listOf(b).stream {
		p.use(b, stream)
	}
	return nil
}

// record makes an event in each stream that used a block. After an error nothing has changed.
func (p *Pool) record(h handle) error {
	used := &p.usages[p.at(h).Own.usage]
	events := make([]pool.Event, len(used.streams))
	for i, stream := range used.streams {
		event, err := p.events.Record(stream)
		if err != nil {
			for _, event := range events[:i] {
				_ = p.events.Destroy(event)
			}
			return fmt.Errorf("recording an event for %#x: %w", p.at(h).Address, err)
		}
		events[i] = event
	}
	for i, stream := range used.streams {
		at := slices.IndexFunc(p.queues, func(q queue) bool { return q.stream == stream })
		if at < 0 {
			at = len(p.queues)
			p.queues = append(p.queues, queue{stream: stream})
		}
		p.queues[at].waiting = append(p.queues[at].waiting, waiting{events[i], h})
	}
	used.pending = len(used.streams)
	used.streams = used.streams[:0]
	return nil
}

// recordDeferred makes the events of the blocks that were freed during a capture.
func (p *Pool) recordDeferred() error {
	for len(p.deferred) > 0 {
		if err := p.record(p.deferred[0]); err != nil {
			return err
		}
		p.deferred = slices.Delete(p.deferred, 0, 1)
	}
	return nil
}

// processEvents retires the blocks whose events are done. During a capture events may not be asked.
func (p *Pool) processEvents() error {
	if err := p.recordDeferred(); err != nil {
		return err
	}
	for i := range p.queues {
		q := &p.queues[i]
		for len(q.waiting) > 0 {
			done, err := p.events.Query(q.waiting[0].event)
			if err != nil {
				return fmt.Errorf("asking for an event of stream %#x: %w", uintptr(q.stream), err)
			}
			if !done {
				break
			}
			p.done(q)
		}
	}
	p.dropEmptyQueues()
	return nil
}

// synchronizeEvents waits for all events. Where that fails, blocks stay as they are.
func (p *Pool) synchronizeEvents() error {
	err := p.recordDeferred()
	for i := range p.queues {
		q := &p.queues[i]
		for len(q.waiting) > 0 {
			if failed := p.events.Synchronize(q.waiting[0].event); failed != nil {
				failed = fmt.Errorf("waiting for an event of stream %#x: %w", uintptr(q.stream), failed)
				err = errors.Join(err, failed)
				break
			}
			p.done(q)
		}
	}
	p.dropEmptyQueues()
	return err
}

// done ends the first event of a queue.
func (p *Pool) done(q *queue) {
	first := q.waiting[0]
	q.waiting = q.waiting[1:]
	_ = p.events.Destroy(first.event)
	used := &p.usages[p.at(first.block).Own.usage]
	if used.pending--; used.pending == 0 {
		p.retire(first.block)
	}
}

func (p *Pool) dropEmptyQueues() {
	p.queues = slices.DeleteFunc(p.queues, func(q queue) bool { return len(q.waiting) == 0 })
}

// unpark retires the parked blocks of segments in which nothing is live and that can be given back.
func (p *Pool) unpark() {
	idle := map[handle]bool{} // by the first block of the segment
	for _, h := range p.parked {
		head := p.head(h)
		if _, known := idle[head]; !known {
			graph := p.listOf(p.at(h)).pool.graph
			idle[head] = graph == nil || graph.graphs == 0
			for other := head; other != none; other = p.at(other).Next {
				idle[head] = idle[head] && (p.table.IsFree(other) || p.at(other).Own.pending)
			}
		}
	}
	p.parked = slices.DeleteFunc(p.parked, func(h handle) bool {
		if !idle[p.head(h)] {
			return false
		}
		p.retire(h)
		return true
	})
}

// abandonEvents waits for all events and forgets them and the blocks that wait, also after an error.
func (p *Pool) abandonEvents() error {
	err := p.synchronizeEvents()
	for _, q := range p.queues {
		for _, w := range q.waiting {
			_ = p.events.Destroy(w.event)
		}
	}
	p.queues, p.deferred, p.parked = nil, nil, nil
	return err
}
