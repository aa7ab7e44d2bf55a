package store

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// ErrDisk says that a file of the disk backup, or its directory, could not be made, kept, written or
// opened; the text names the directory and what to do, the cause is wrapped (an errno, where there is one).
// After a Save nothing was saved. After a Load the files are as they were: nothing is lost.
var ErrDisk = cuda.Refuse(cuda.OperatingSystem, "the disk backup failed")

// Disk keeps contents in sections of files that have no name, and that others cannot open. A file lasts until the
// Discard of its last contents, or the process's end. Nothing is synced, because contents do not outlive the process.
type Disk struct {
	// Descriptors keeps the files.
	Descriptors Descriptors

	driver *cuda.Driver
	warn   func(string)

	mu        sync.Mutex
	current   *directory
	chunkSize uint64 // bytes of one read or write, at most stagingSize

	staging *reclaim.Kind // buffers
	removed *reclaim.Kind // sections of files
}

// tmpfsWarned belongs to the process, not to a Disk: one line in a log is enough.
var tmpfsWarned atomic.Bool

// NewDisk returns a store of files. Configure it before the first Save. The store calls warn, at most once in a
// process, with a line for the user's log.
func NewDisk(driver *cuda.Driver, warn func(string)) *Disk {
	return &Disk{
		Descriptors: &OwnTable{},
		driver:      driver,
		warn:        warn,
		chunkSize:   stagingSize,
		staging:     driver.Reclaim.Kind("staging memory"),
		removed:     driver.Reclaim.Kind("file"),
	}
}

// Configure says where the next Save puts its files. A missing directory is made, for its owner only. setting says
// where the path came from, for error texts: the name of a function or variable, "" for a default.
// Errors: ErrDisk.
func (d *Disk) Configure(path, setting string) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return (&directory{path, setting}).failed("finding", err)
	}
	made := &directory{absolute, setting}
	if err := made.make(); err != nil {
		return err
	}
	d.mu.Lock()
	d.current = made
	d.mu.Unlock()
	if inMemory(absolute) && !tmpfsWarned.Swap(true) {
		d.warn(fmt.Sprintf("disk backup: %s is a file system in memory (tmpfs), so a backup there takes host memory; "+
			"%s", absolute, made.elsewhere(" on a disk")))
	}
	return nil
}

// diskContents is what a section has.
type diskContents struct {
	disk *Disk
	size uint64

	mu sync.Mutex
	in *section // nil once discarded
}

func (c *diskContents) Store() Store  { return c.disk }
func (c *diskContents) Bytes() uint64 { return c.size }
func (c *diskContents) Host() uintptr { return 0 }

// Discard gives the section up; its space is free before the next Save needs it.
func (c *diskContents) Discard() { c.replace(nil) }

func (c *diskContents) Await(until time.Time) {
	if c.current() == nil {
		c.disk.removed.Await(until)
	}
}

func (c *diskContents) current() *section {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.in
}

// replace gives up the section that the contents were in, unless it is in itself.
func (c *diskContents) replace(in *section) {
	c.mu.Lock()
	old := c.in
	c.in = in
	c.mu.Unlock()
	if old != nil && old != in {
		c.disk.remove(old)
	}
}

// Save is Store's Save. Space for all of it is reserved before anything is copied. A kept section is overwritten
// in place; where another directory was configured since, its contents go to a new file. A section is always written
// whole.
func (d *Disk) Save(job Job, items []Item) ([]Contents, error) {
	return d.save(items, d.transfer(job, true, false))
}

// Take writes copies that are in host memory to files, without a driver call. Each source has all of its span at Host,
// at a multiple of 4 KiB. The sources stay as they are; after an error nothing is kept of them. Errors: ErrDisk.
func (d *Disk) Take(job Job, sources []Contents) ([]Contents, error) {
	items := make([]Item, len(sources))
	for i, source := range sources {
		items[i].Span = Span{Address: source.Host(), Size: source.Bytes()}
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
	sections := make([]*section, len(items))
	for i, item := range items {
		sections[i] = reusable(item.Kept, where, item.Size)
	}
	fresh, err := d.create(where, sections, items)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		saving.add(item.Span, sections[i])
	}
	if err := saving.Wait(); err != nil {
		d.remove(fresh...)
		return nil, err
	}
	contents := make([]Contents, len(items))
	for i, item := range items {
		c, ok := item.Kept.(*diskContents)
		if !ok {
			c = &diskContents{disk: d, size: item.Size}
		}
		c.replace(sections[i])
		contents[i] = c
	}
	return contents, nil
}

// create makes the missing sections of items, with space for them, or none.
func (d *Disk) create(where *directory, sections []*section, items []Item) (fresh []*section, err error) {
	var needed uint64
	for i, item := range items {
		if sections[i] == nil {
			needed += item.Size
		}
	}
	if needed == 0 {
		return nil, nil
	}
	// Even where there is room for both: the space that the backup takes is to stay the same.
	d.removed.Drain()
	if err := where.enough(needed); err != nil {
		return nil, err
	}
	// Several, because ext4 lets one request at a time write to new parts of a file; few, because each takes a
	// descriptor.
	files := make([]*diskFile, min(inFlight, 1+needed/filePart))
	var made []*diskFile
	most := largestFile()
	for i, item := range items {
		if sections[i] != nil {
			continue
		}
		file := &files[len(fresh)%len(files)]
		if *file == nil || (*file).size+item.Size > most {
			*file = &diskFile{directory: where}
			made = append(made, *file)
		}
		sections[i] = (*file).add(item.Size)
		fresh = append(fresh, sections[i])
	}
	for n, file := range made {
		if err = file.create(d.Descriptors); err != nil {
			fresh = slices.DeleteFunc(fresh, func(s *section) bool { return !slices.Contains(made[:n], s.file) })
			d.remove(fresh...)
			return nil, err
		}
	}
	return fresh, nil
}

// filePart is how much a pause writes to one file before it takes another.
const filePart = 64 << 20

// largestFile returns how large a file of the process may become (ulimit -f).
func largestFile() uint64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_FSIZE, &limit) != nil {
		return math.MaxUint64
	}
	return limit.Cur
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

// reusable returns the section of kept contents, nil if a new one is needed.
func reusable(kept Contents, where *directory, size uint64) *section {
	c, ok := kept.(*diskContents)
	if !ok {
		return nil
	}
	in := c.current()
	if in == nil || in.file.directory.path != where.path || in.size != size {
		return nil
	}
	return in
}

// Load is Store's Load. Errors: a *Lost where a file cannot be read.
func (d *Disk) Load(job Job) Loader { return d.transfer(job, false, false) }

// remove gives sections up, whose space comes back in the background.
func (d *Disk) remove(sections ...*section) {
	for _, s := range sections {
		s.leave()
	}
	for _, s := range sections {
		d.removed.Add(s.size, func() error { return s.free(d.Descriptors) })
	}
}

// drop gives staging memory back.
func (d *Disk) drop(staging *pinnedBuffer) {
	if staging != nil {
		staging.Discard(d.staging)
	}
}
