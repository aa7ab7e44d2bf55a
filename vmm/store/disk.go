package store

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"tms/internal/aid/directio"
	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// ErrDisk says that a file of the disk backup, or its directory, could not be made, held, written or opened; the text
// names the directory and what to do, the cause is wrapped (an errno, where there is one). After a Save nothing was
// saved. After a Load the files are as they were: nothing is lost.
var ErrDisk = cuda.Refuse(cuda.OperatingSystem, "the disk backup failed")

// Disk keeps contents in files that have no name, and that others cannot open. A file lasts until the Discard of its
// last contents, or the process's end. Nothing is synced, because contents do not outlive the process.
type Disk struct {
	holder
	driver *cuda.Driver
	warn   func(string)

	mu        sync.Mutex
	current   *Directory
	chunkSize uint64 // bytes of one read or write, at most stagingSize

	staging *reclaim.Kind // buffers
}

// tmpfsWarned belongs to the process, not to a Disk: one line in a log is enough.
var tmpfsWarned atomic.Bool

// NewMemory returns a store of files that are host memory: see memoryFiles. Only they may have sparse Items.
func NewMemory(driver *cuda.Driver, descriptors Descriptors) *Disk {
	d := NewDisk(driver, descriptors, nil)
	d.current = memoryFiles
	return d
}

// NewDisk returns a store of files, which descriptors keeps. Configure it before the first Save. The store calls warn,
// at most once in a process, with a line for the user's log.
func NewDisk(driver *cuda.Driver, descriptors Descriptors, warn func(string)) *Disk {
	return &Disk{
		holder:    holder{descriptors, driver.Reclaim.Kind("file")},
		driver:    driver,
		warn:      warn,
		chunkSize: stagingSize,
		staging:   driver.Reclaim.Kind("staging memory"),
	}
}

// Configure says where the next Save puts its files: in a Directory, which it makes. Errors: ErrDisk.
func (d *Disk) Configure(path, setting string) error {
	made, err := NewDirectory(path, setting)
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.current = made
	d.mu.Unlock()
	if made.InMemory() && !tmpfsWarned.Swap(true) {
		d.warn(fmt.Sprintf("disk backup: %s is a file system in memory (tmpfs), so a backup there takes host memory; "+
			"%s", made.path, made.elsewhere(" on a disk")))
	}
	return nil
}

// diskContents is contents in files.
type diskContents = heldContents[*diskFile]

// Save is Store's Save. Space for all of it is reserved before anything is copied. Saved contents are overwritten in
// place; where another directory was configured since, they go to new files. Only sparse ones are not written whole.
func (d *Disk) Save(job Job, items []Item) ([]Contents, error) {
	return d.save(items, d.transfer(job, true, false))
}

// Take writes copies that are in host memory to files, without a driver call. Each source has all of its span at Host,
// at a multiple of 4 KiB. The sources stay as they are; after an error nothing is saved of them. Errors: ErrDisk.
func (d *Disk) Take(job Job, sources []Contents) ([]Contents, error) {
	items := make([]Item, len(sources))
	for i, source := range sources {
		items[i].Span = Span{Address: source.Host(), Size: source.Bytes()}
		if c, ok := source.(*privateContents); ok && c.sparse {
			items[i] = c.packed()
		}
	}
	return d.save(items, d.transfer(job, true, true))
}

func (d *Disk) save(items []Item, saving *transfer) (_ []Contents, err error) {
	d.mu.Lock()
	where := d.current
	d.mu.Unlock()
	if where == nil {
		return nil, fmt.Errorf("%w: no directory is configured", ErrDisk)
	}
	places := make([]place[*diskFile], len(items))
	for i, item := range items {
		places[i] = reusable(item.Saved, where, item.Size)
	}
	bytes, inMemory := fresh(items, places), where.InMemory()
	if inMemory {
		if err := saving.job.Budget.Take(bytes); err != nil {
			return nil, err
		}
	}
	taken, err := d.take(where, items, places)
	if err != nil {
		return nil, err
	}
	if inMemory && !where.memory {
		saving.job.Budget.Touched(bytes) // a tmpfs gives space at once, and the system counts that
	}
	saving.add(items, places)
	if err := saving.Wait(); err != nil {
		for _, p := range taken {
			p.leave(d.garbage)
		}
		return nil, err
	}
	contents := make([]Contents, len(items))
	for i, item := range items {
		c, ok := item.Saved.(*diskContents)
		if !ok || c.store != Store(d) {
			c = &diskContents{store: d, garbage: d.garbage, size: item.Size}
		}
		if item.Sparse {
			c.size, c.sparse, c.parts = Ranges(item.Parts).Bytes(), true, item.Parts
		}
		c.move(places[i])
		contents[i] = c
	}
	return contents, nil
}

// fresh returns how many bytes go to new files.
func fresh(items []Item, places []place[*diskFile]) (bytes uint64) {
	for i, item := range items {
		if places[i].in == nil {
			bytes += item.Needs()
		}
	}
	return bytes
}

// reusable returns the place of saved contents, or nowhere if they need a new one.
func reusable(saved Contents, where *Directory, size uint64) place[*diskFile] {
	if c, ok := saved.(*diskContents); ok && !c.sparse {
		if p := c.place(); p.in != nil && p.size == size && p.first().directory.path == where.path {
			return p
		}
	}
	return place[*diskFile]{}
}

// take makes files with space for the items that are nowhere, and gives each a place there; or it makes none.
func (d *Disk) take(where *Directory, items []Item, places []place[*diskFile]) (fresh []place[*diskFile], err error) {
	var needed uint64
	for i, item := range items {
		if places[i].in == nil {
			needed += wholeBlocks(max(item.Size, 1))
		}
	}
	if needed == 0 {
		return nil, nil
	}
	// Even where there is room for both: the space that the backup takes is to stay the same.
	d.garbage.Drain()
	if err := where.enough(needed); err != nil {
		return nil, err
	}
	// Several, because ext4 lets one request at a time write to new parts of a file; few, because each takes a
	// descriptor.
	count := min(filesAtOnce, 1+needed/filePart)
	r := &run[*diskFile]{each: min(wholeBlocks((needed+count-1)/count), largestFile())}
	for left := needed; left > 0; left -= min(left, r.each) {
		file := &diskFile{extent: extent{size: min(left, r.each)}, disk: d, directory: where}
		if err := file.create(); err != nil {
			for _, made := range r.extents {
				d.garbage.Add(made.size, made.release)
			}
			return nil, err
		}
		r.extents = append(r.extents, file)
	}
	var used uint64
	for i, item := range items {
		if places[i].in == nil {
			places[i] = place[*diskFile]{r, used, max(item.Size, 1)}
			places[i].occupy()
			fresh = append(fresh, places[i])
			used += wholeBlocks(max(item.Size, 1))
		}
	}
	return fresh, nil
}

// A pause writes filePart to one file before it takes another, and has no more files than filesAtOnce.
const (
	filePart    = 64 << 20
	filesAtOnce = 8
)

func wholeBlocks(size uint64) uint64 {
	return (size + directio.Block - 1) / directio.Block * directio.Block
}

// largestFile returns how large a file of the process may become (ulimit -f), in whole blocks.
func largestFile() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) != nil {
		return math.MaxUint64
	}
	return max(limit.Cur/directio.Block, 1) * directio.Block
}

// Give reads contents of this store into the host memory of targets; each has the right size, and a Host like the
// sources of Take. Errors: a *Lost, as of a Load; the files stay as they are.
func (d *Disk) Give(job Job, contents, targets []Contents) error {
	reading := d.transfer(job, false, true)
	for i, c := range contents {
		reading.Add(Span{Address: targets[i].Host(), Size: c.Bytes()}, c)
	}
	return reading.Wait()
}

// Load is Store's Load. Errors: a *Lost where a file cannot be read.
func (d *Disk) Load(job Job) Loader { return d.transfer(job, false, false) }

// drop gives staging memory back.
func (d *Disk) drop(staging *pinnedBuffer) {
	if staging != nil {
		staging.Discard(d.staging)
	}
}
