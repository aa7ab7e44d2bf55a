package disk

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/vmm/backup"
	"tms/vmm/backup/internal/pinned"
	"tms/vmm/cuda"
	"tms/vmm/reclaim"
)

// ErrFailed says that a file of the disk backup, or its directory, could not be made, written or
// opened; the text names the path and what to do, the cause is wrapped (an errno, where there is one).
// After a Save nothing was saved. After a Load the files are as they were: nothing is lost.
var ErrFailed = cuda.Refuse(cuda.OperatingSystem, "the disk backup failed")

// Store keeps contents in files, one for each span, which others can see and only their owner can
// read: tms-<pid>-<start>-<n>.bak. A file lives until its Discard; the next process that uses the directory removes
// those of a killed process. Nothing is synced, because contents need not outlive the process.
type Store struct {
	driver *cuda.Driver
	warn   func(string)

	mu          sync.Mutex
	directories map[string]*directory // by absolute path; each has been cleaned
	current     *directory
	chunkSize   uint64 // bytes of one read or write, at most stagingSize

	// Noted is told of each folder, and how the names of this process's files begin there. One call at a time.
	Noted func(folder, prefix string)

	staging *reclaim.Kind // buffers
	removed *reclaim.Kind // files
}

// tmpfsWarned belongs to the process, not to a Store: one line in a log is enough.
var tmpfsWarned atomic.Bool

// New returns a store of files. Configure it before the first Save. The store calls warn, at most once in a process,
// with a line for the user's log.
func New(driver *cuda.Driver, warn func(string)) *Store {
	return &Store{
		driver:      driver,
		warn:        warn,
		directories: map[string]*directory{},
		chunkSize:   stagingSize,
		staging:     driver.Reclaim.Kind("staging memory"),
		removed:     driver.Reclaim.Kind("file"),
	}
}

// Configure says where the next Save puts its files. A missing directory is made, for its owner only. setting says
// where the path came from, for error texts: the name of a function or variable, "" for a default. The first use of a
// directory removes the files that dead processes left there. Errors: ErrFailed.
func (d *Store) Configure(path, setting string) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return newDirectory(path, setting).failed("finding", path, err)
	}
	made := newDirectory(absolute, setting)
	if err := made.make(); err != nil {
		return err
	}
	d.use(made)
	if inMemory(absolute) && !tmpfsWarned.Swap(true) {
		d.warn(fmt.Sprintf("disk backup: %s is a file system in memory (tmpfs), so a backup there takes host memory; "+
			"%s", absolute, made.elsewhere(" on a disk")))
	}
	return nil
}

func (d *Store) use(made *directory) {
	d.mu.Lock()
	defer d.mu.Unlock()
	known := d.directories[made.path]
	if known == nil {
		removeLeftovers(made.path)
		known = made
		d.directories[made.path] = made
		if self, err := self(); err == nil && d.Noted != nil {
			d.Noted(made.path, self.String()+"-")
		}
	}
	known.setting.Store(made.setting.Load())
	d.current = known
}

// diskContents is a span's file.
type diskContents struct {
	disk *Store
	size uint64

	mu   sync.Mutex
	file *diskFile // nil once discarded
}

func (c *diskContents) Store() backup.Store { return c.disk }
func (c *diskContents) Bytes() uint64       { return c.size }
func (c *diskContents) Host() uintptr       { return 0 }

// Discard removes the file; its space is free before the next Save needs it.
func (c *diskContents) Discard() { c.replace(nil) }

func (c *diskContents) Await(until time.Time) {
	if c.current() == nil {
		c.disk.removed.Await(until)
	}
}

func (c *diskContents) current() *diskFile {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.file
}

// replace removes the file that the contents were in, unless it is file itself.
func (c *diskContents) replace(file *diskFile) {
	c.mu.Lock()
	old := c.file
	c.file = file
	c.mu.Unlock()
	if old != nil && old != file {
		c.disk.remove(old)
	}
}

// Save is backup.Store's Save. Space for all of it is reserved before anything is copied. A kept file is
// overwritten in place; where that is impossible (it is gone, is not the one that was made, or another directory was
// configured since), its contents go to a new one. A file is always written whole.
func (d *Store) Save(job backup.Job, items []backup.Item) ([]backup.Contents, error) {
	return d.save(items, d.transfer(job, unix.O_WRONLY, false))
}

// Take writes copies that are in host memory to files, without a driver call. Each source has all of its span at Host,
// at a multiple of 4 KiB. The sources stay as they are; after an error nothing is kept of them. Errors: ErrFailed.
func (d *Store) Take(job backup.Job, sources []backup.Contents) ([]backup.Contents, error) {
	items := make([]backup.Item, len(sources))
	for i, source := range sources {
		items[i].Span = backup.Span{Address: source.Host(), Size: source.Bytes()}
	}
	return d.save(items, d.transfer(job, unix.O_WRONLY, true))
}

func (d *Store) save(items []backup.Item, saving *transfer) (_ []backup.Contents, err error) {
	d.mu.Lock()
	where := d.current
	d.mu.Unlock()
	if where == nil {
		return nil, fmt.Errorf("%w: no directory is configured", ErrFailed)
	}
	if err := where.hold(); err != nil {
		return nil, err
	}
	defer where.drop()

	files := make([]*diskFile, len(items))
	for i, item := range items {
		if files[i], err = reusable(item.Kept, where, item.Size); err != nil {
			return nil, err
		}
	}
	fresh, err := d.create(where, files, items)
	if err != nil {
		return nil, err
	}
	for i, item := range items {
		saving.add(item.Span, files[i])
	}
	if err := saving.Wait(); err != nil {
		d.remove(fresh...)
		return nil, err
	}
	contents := make([]backup.Contents, len(items))
	for i, item := range items {
		c, ok := item.Kept.(*diskContents)
		if !ok {
			c = &diskContents{disk: d, size: item.Size}
		}
		c.replace(files[i])
		contents[i] = c
	}
	return contents, nil
}

// create makes the missing files of items, with space for them, or none.
func (d *Store) create(where *directory, files []*diskFile, items []backup.Item) (fresh []*diskFile, err error) {
	var needed uint64
	for i, item := range items {
		if files[i] == nil {
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
	for i, item := range items {
		if files[i] != nil {
			continue
		}
		if files[i], err = where.create(item.Size, d.removed); err != nil {
			d.remove(fresh...)
			return nil, err
		}
		fresh = append(fresh, files[i])
	}
	return fresh, nil
}

// Give reads contents of this store into the host memory of targets; each has the right size, and a Host like the
// sources of Take. Errors: a *Lost, as of a Load; the files stay as they are.
func (d *Store) Give(job backup.Job, contents, targets []backup.Contents) error {
	reading := d.transfer(job, unix.O_RDONLY, true)
	for i, c := range contents {
		reading.Add(backup.Span{Address: targets[i].Host(), Size: c.Bytes()}, c)
	}
	return reading.Wait()
}

// reusable returns the file of kept contents with its space reserved, nil if a new one is needed.
func reusable(kept backup.Contents, where *directory, size uint64) (*diskFile, error) {
	c, ok := kept.(*diskContents)
	if !ok {
		return nil, nil
	}
	file := c.current()
	if file == nil || file.directory != where || file.size != size {
		return nil, nil
	}
	fd, _, err := file.open(unix.O_WRONLY, 0)
	if errors.Is(err, errChanged) {
		return nil, nil
	}
	if err != nil {
		return nil, where.failed("opening", file.path, err)
	}
	defer file.identity.close(fd)
	return file, file.reserve(fd)
}

// Load is backup.Store's Load. Errors: a *Lost where a file is not the one that Save made, is shorter, or
// cannot be read.
func (d *Store) Load(job backup.Job) backup.Loader { return d.transfer(job, unix.O_RDONLY, false) }

// remove removes files in the background.
func (d *Store) remove(files ...*diskFile) {
	for _, f := range files {
		d.removed.Add(f.size, f.unlink)
	}
}

// drop gives staging memory back.
func (d *Store) drop(staging *pinned.Buffer) {
	if staging != nil {
		staging.Discard(d.staging)
	}
}
