package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"tms/internal/aid/directio"
)

// Writer makes a snapshot. Add may be called by several threads; Commit or Abort ends it.
type Writer struct {
	directory *Directory
	name      string
	lock      *os.File // shared
	named     map[Sum]bool
	buffers   buffers

	mu     sync.Mutex
	put    map[Sum]bool
	places map[Sum]Place // of blocks in packs
	packs  []string      // by their numbers
	open   []*pack       // of these, what this writer writes
	idle   []*pack       // of these, to which no thread writes now
	failed error         // of a block that could not be written: another Add may rely on it

	contents, memory progress
}

// progress counts what Progress has.
type progress struct {
	read, zero, shared, written atomic.Int64
}

func (p *progress) now() Progress {
	return Progress{p.read.Load(), p.zero.Load(), p.shared.Load(), p.written.Load()}
}

// Progress says what a Writer has done, in bytes.
type Progress struct {
	Read    int64 `json:"read"`    // of files, but for holes
	Zero    int64 `json:"zero"`    // in blocks of zeros, and in holes
	Shared  int64 `json:"shared"`  // in blocks that were there already
	Written int64 `json:"written"` // in new blocks
}

// Begin begins a snapshot. Whatever ends the process, it is not complete before Commit.
func (d *Directory) Begin(name string) (_ *Writer, err error) {
	if err := goodName(name); err != nil {
		return nil, err
	}
	lock, err := d.lock(unix.LOCK_SH)
	if err != nil {
		return nil, d.failed("locking", d.path, err)
	}
	w := &Writer{directory: d, name: name, lock: lock, named: map[Sum]bool{}, buffers: newBuffers(), put: map[Sum]bool{},
		places: map[Sum]Place{}}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	complete, _, err := d.names()
	if err != nil {
		return nil, err
	}
	for _, other := range complete {
		if other == name {
			return nil, fmt.Errorf("there is a snapshot %s in %s already", name, d.path)
		}
		// One that cannot be read vouches for no block.
		if m, err := d.readManifest(other); err == nil {
			for _, c := range m.contents() {
				for _, sum := range c.Blocks {
					w.named[sum] = w.named[sum] || c.Places == nil
				}
			}
			w.share(m)
		}
	}
	if err := os.Mkdir(w.Folder(), 0o700); err != nil {
		return nil, d.failed("making", w.Folder(), err)
	}
	return w, nil
}

// Folder is where other files of the snapshot go; Commit takes their hashes.
func (w *Writer) Folder() string { return filepath.Join(w.directory.path, w.name+partial) }

// Progress says what Add has done. It may be called at any time.
func (w *Writer) Progress() Progress { return w.contents.now() }

// Memory says what AddPages has done. It may be called at any time.
func (w *Writer) Memory() Progress { return w.memory.now() }

// Add puts what a file has into blocks. The file must not change until Add returns.
func (w *Writer) Add(ctx context.Context, file *os.File, size int64) (Content, error) {
	content := Content{Size: size, Blocks: make([]Sum, blocksOf(size))}
	fd, source := int(file.Fd()), directio.Of(int(file.Fd()))
	err := w.buffers.each(ctx, len(content.Blocks), func(i int, buffer []byte) (err error) {
		offset, length := int64(i)*BlockSize, content.length(i)
		if hole(fd, offset, length) {
			w.contents.zero.Add(length)
			return nil
		}
		if err := source.Read(buffer[:length], offset); err != nil {
			return fmt.Errorf("reading contents: %w", err)
		}
		w.contents.read.Add(length)
		block := buffer[:wholeBlocks(length)]
		clear(block[length:])
		if bytes.Equal(block, zeros[:len(block)]) {
			w.contents.zero.Add(length)
			return nil
		}
		content.Blocks[i] = sha256.Sum256(block)
		return w.add(content.Blocks[i], block)
	})
	return content, w.failing(err)
}

// failing notes an error, after which the snapshot cannot be complete.
func (w *Writer) failing(err error) error {
	if err != nil {
		w.mu.Lock()
		w.failed = errors.Join(w.failed, err)
		w.mu.Unlock()
	}
	return err
}

var zeros [BlockSize]byte

func wholeBlocks(size int64) int64 {
	return (size + directio.Block - 1) / directio.Block * directio.Block
}

// hole reports whether a file has nothing in a range.
func hole(fd int, offset, length int64) bool {
	data, err := unix.Seek(fd, offset, unix.SEEK_DATA)
	return err == unix.ENXIO || err == nil && data >= offset+length
}

// add writes a block that is not there yet. A block that a complete snapshot names was on the disk before that snapshot
// was; another one may be what a crash of the machine has left, so it is read before it is relied on.
func (w *Writer) add(sum Sum, block []byte) error {
	w.mu.Lock()
	known := w.put[sum]
	w.put[sum] = true
	w.mu.Unlock()
	if !known {
		path := w.directory.blockPath(sum)
		info, err := os.Stat(path)
		there := err == nil && info.Size() == int64(len(block))
		if there && !w.named[sum] {
			there = w.directory.readBlock(sum, directio.Buffer(len(block))) == nil
		}
		if !there {
			if err := w.directory.writeBlock(path, block); err != nil {
				return err
			}
			w.contents.written.Add(int64(len(block)))
			return nil
		}
	}
	w.contents.shared.Add(int64(len(block)))
	return nil
}

// writeBlock makes a block, complete or not at all. Another writer may make the same one at the same time.
func (d *Directory) writeBlock(path string, block []byte) (err error) {
	made := fmt.Sprintf("%s.%d.%d", path, os.Getpid(), temporary.Add(1))
	defer func() {
		if err != nil {
			_ = os.Remove(made)
			err = d.failed("writing", path, err)
		}
	}()
	if err = writeDirect(made, block); errors.Is(err, fs.ErrNotExist) {
		if err = os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		err = writeDirect(made, block)
	}
	if err != nil {
		return err
	}
	return fallible("rename", func() error { return os.Rename(made, path) })
}

func writeDirect(path string, block []byte) error {
	fd, direct, err := directio.Open(func(flags int) (int, error) { return create(path, flags) })
	if err != nil {
		return err
	}
	file := directio.Of(fd)
	file.Direct.Store(direct)
	return errors.Join(file.Write(block, 0), unix.Close(fd))
}

var temporary atomic.Uint64 // the last name of a file that is being written

func create(path string, flags int) (fd int, err error) {
	err = fallible("open", func() error {
		fd, err = ignoringEINTR(func() (int, error) {
			return unix.Open(path, flags|unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o600)
		})
		return err
	})
	return fd, err
}

func ignoringEINTR(call func() (int, error)) (result int, err error) {
	for err = unix.EINTR; err == unix.EINTR; {
		result, err = call()
	}
	return result, err
}

// Commit makes the snapshot complete, with the manifest, whose Files it fills in. When it returns, all is on the disk.
// After an error the writer can only be aborted.
func (w *Writer) Commit(ctx context.Context, manifest *Manifest) error {
	w.mu.Lock()
	failed := w.failed
	w.mu.Unlock()
	if failed != nil {
		return failed
	}
	if manifest.Version = Version; len(manifest.Sets) == 0 {
		manifest.Version = withoutSets
	}
	if manifest.Made.IsZero() {
		manifest.Made = time.Now().UTC()
	}
	w.closePacks()
	manifest.Packs = keepUsed(w.packs, manifest.contents())
	var err error
	if manifest.Files, err = w.files(ctx); err != nil {
		return err
	}
	if err := manifest.write(w.Folder()); err != nil {
		return w.directory.failed("writing", filepath.Join(w.Folder(), manifestName), err)
	}
	if err := w.flush(); err != nil {
		return w.directory.failed("writing", w.directory.path, err)
	}
	done := filepath.Join(w.directory.path, w.name)
	if err := fallible("rename", func() error { return os.Rename(w.Folder(), done) }); err != nil {
		return w.directory.failed("naming", done, err)
	}
	if err := w.flush(); err != nil {
		_ = os.Rename(done, w.Folder())
		return w.directory.failed("writing", w.directory.path, err)
	}
	_ = w.lock.Close()
	return nil
}

// flush waits until all that was written to the directory is on the disk. It does so by the lock, which has been open
// since the writer began: the kernel tells each open file once of a page that could not be written, whoever flushed it.
// (syncfs; errseq_t of the kernel's documentation)
func (w *Writer) flush() error {
	return fallible("syncfs", func() error { return unix.Syncfs(int(w.lock.Fd())) })
}

// files hashes the files in the folder.
func (w *Writer) files(ctx context.Context) (files []File, err error) {
	err = filepath.WalkDir(w.Folder(), func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			return nil
		case !entry.Type().IsRegular():
			return fmt.Errorf("%s is no ordinary file", path)
		}
		name, err := filepath.Rel(w.Folder(), path)
		if err != nil {
			return err
		}
		content, err := hashFile(ctx, w.buffers, path)
		if err != nil {
			return w.directory.failed("reading", path, err)
		}
		files = append(files, File{name, content})
		return nil
	})
	return files, err
}

// hashFile returns what a file has. It leaves the file in the page cache.
func hashFile(ctx context.Context, memory buffers, path string) (Content, error) {
	file, err := os.Open(path)
	if err != nil {
		return Content{}, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return Content{}, err
	}
	content := Content{Size: info.Size(), Blocks: make([]Sum, blocksOf(info.Size()))}
	err = memory.each(ctx, len(content.Blocks), func(i int, buffer []byte) error {
		length := content.length(i)
		if n, err := file.ReadAt(buffer[:length], int64(i)*BlockSize); int64(n) < length {
			return fmt.Errorf("it ended at %d bytes of %d: %w", int64(i)*BlockSize+int64(n), content.Size,
				errors.Join(err, io.ErrUnexpectedEOF))
		}
		block := buffer[:wholeBlocks(length)]
		clear(block[length:])
		if !bytes.Equal(block, zeros[:len(block)]) {
			content.Blocks[i] = sha256.Sum256(block)
		}
		return nil
	})
	return content, err
}

// Abort gives the snapshot up, and takes away what it has written, unless another writer or reader is there: then the
// next prune does.
func (w *Writer) Abort() {
	w.closePacks()
	_ = os.RemoveAll(w.Folder())
	_ = w.lock.Close()
	_, _ = w.directory.Prune(PruneOptions{})
}
