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
	open    int // descriptors in the queue
	running bool
	idle    sync.Cond
}

// reclaim is a file of which the name is gone already; or, if fd is -1, not yet.
type reclaim struct {
	file *diskFile
	fd   int
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
	job := reclaim{file: f, fd: -1}
	if r.open < maxReclaiming {
		if fd, _, err := f.open(unix.O_WRONLY, 0); err == nil {
			job.fd = fd
			r.open++
			f.unlink()
		}
	}
	r.queue = append(r.queue, job)
	if !r.running {
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
		_ = guard.Call(func() error {
			if job.fd < 0 {
				job.file.unlink()
				return nil
			}
			// Closing would do, but for a child forked just now that has the descriptor too.
			_ = unix.Ftruncate(job.fd, 0)
			closeFile(job.fd)
			return nil
		})
		r.mu.Lock()
		if job.fd >= 0 {
			r.open--
		}
	}
	r.running = false
	r.idle.Broadcast()
}

// wait returns when the space of all removed files is free.
func (r *reclaimer) wait() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.running {
		r.idle.Wait()
	}
}
