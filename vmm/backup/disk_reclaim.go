package backup

import (
	"sync"

	"golang.org/x/sys/unix"

	"tms/internal/guard"
)

// reclaimer gives the space of removed files back in the background: on a disk that is told of
// free blocks (mount option discard) that takes 170 ms for each GiB.
type reclaimer struct {
	mu      sync.Mutex
	queue   []reclaim
	refused []reclaim // whose names could not be taken away, for the next time
	open    int       // descriptors in the queue
	running bool
	idle    sync.Cond
}

// reclaim is a file to be removed.
type reclaim struct {
	file  *diskFile
	fd    int  // -1: not open
	named bool // its name is there still
}

// maxReclaiming bounds the descriptors, of which the host may have few; files beyond it keep their
// names a little longer.
const maxReclaiming = 64

func newReclaimer() *reclaimer {
	r := &reclaimer{}
	r.idle.L = &r.mu
	return r
}

// remove takes the file away, but not another that has its name.
func (r *reclaimer) remove(f *diskFile) {
	r.mu.Lock()
	defer r.mu.Unlock()
	job := reclaim{file: f, fd: -1, named: true}
	if r.open < maxReclaiming {
		if fd, _, err := f.open(unix.O_WRONLY, 0); err == nil {
			job.fd = fd
			r.open++
			job.named = f.unlink() != nil
		}
	}
	r.queue = append(r.queue, job)
	r.start()
}

func (r *reclaimer) start() {
	r.queue = append(r.queue, r.refused...)
	r.refused = nil
	if len(r.queue) > 0 && !r.running {
		r.running = true
		go r.run()
	}
}

func (r *reclaimer) run() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 {
		job := r.queue[0]
		r.queue = r.queue[1:]
		r.mu.Unlock()
		err := guard.Call(func() error {
			if job.fd >= 0 {
				// Closing would do, but for a child forked just now that has the descriptor too.
				_ = ftruncate(job.fd, 0)
				closeFile(job.fd)
			}
			if job.named {
				return job.file.unlink()
			}
			return nil
		})
		r.mu.Lock()
		if job.fd >= 0 {
			r.open--
		}
		if err != nil {
			r.refused = append(r.refused, reclaim{file: job.file, fd: -1, named: true})
		}
	}
	r.running = false
	r.idle.Broadcast()
}

// wait returns when the space of all removed files is free.
func (r *reclaimer) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.start()
	for r.running {
		r.idle.Wait()
	}
}
