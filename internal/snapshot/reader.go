package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"tms/internal/aid/directio"
)

// Snapshot is one that is open: a prune does not begin before Close.
type Snapshot struct {
	Name     string
	Manifest *Manifest

	directory *Directory
	lock      *os.File // shared
	buffers   buffers
}

// Load opens a snapshot by its name, or the newest, and finds all its files and blocks; it does not read them. Errors:
// *Damage.
func (d *Directory) Load(name string) (_ *Snapshot, err error) {
	lock, err := d.lock(unix.LOCK_SH)
	if err != nil {
		return nil, d.failed("locking", d.path, err)
	}
	defer func() {
		if err != nil {
			_ = lock.Close()
		}
	}()
	if name, err = d.find(name); err != nil {
		return nil, err
	}
	m, err := d.readManifest(name)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Name: name, Manifest: m, directory: d, lock: lock, buffers: newBuffers()}
	if damage := s.missing(); damage != nil {
		return nil, damage[0]
	}
	return s, nil
}

// find returns the name of a snapshot, or of the newest.
func (d *Directory) find(name string) (string, error) {
	complete, incomplete, err := d.names()
	if err != nil {
		return "", err
	}
	if name == "" {
		if len(complete) == 0 {
			begun := ""
			if len(incomplete) > 0 {
				begun = "; what was begun (" + incomplete[0] + ") is not complete, and cannot be restored"
			}
			return "", fmt.Errorf("%s has no snapshot%s", d.path, begun)
		}
		return complete[len(complete)-1], nil
	}
	if err := goodName(name); err != nil {
		return "", err
	}
	info, err := os.Stat(filepath.Join(d.path, name))
	if err != nil || !info.IsDir() {
		return "", fmt.Errorf("%s has no snapshot %s; \"tms snapshots %s\" lists them", d.path, name, d.path)
	}
	return name, trusted(filepath.Join(d.path, name), info)
}

// Folder is where the snapshot's other files are.
func (s *Snapshot) Folder() string { return filepath.Join(s.directory.path, s.Name) }

// Close lets a prune begin.
func (s *Snapshot) Close() { _ = s.lock.Close() }

// Copy makes a file that has a content. Each block is verified before any of it is in the file. The file may be sparse
// afterwards. Errors: *Damage.
func (s *Snapshot) Copy(ctx context.Context, content Content, file *os.File) error {
	for _, size := range []int64{0, content.Size} { // a file that had contents is empty first
		if err := file.Truncate(size); err != nil {
			return fmt.Errorf("making room for %d bytes of contents: %w", content.Size, err)
		}
	}
	write, offsets := directio.Of(int(file.Fd())).Write, content.offsets()
	if content.cached() {
		write = func(buffer []byte, offset int64) error {
			_, err := file.WriteAt(buffer, offset)
			return err
		}
	}
	return s.buffers.each(ctx, len(content.Blocks), func(i int, buffer []byte) error {
		sum, length := content.Blocks[i], content.length(i)
		if sum == (Sum{}) {
			return nil
		}
		if err := s.directory.readBlock(sum, buffer[:wholeBlocks(length)], content.cached()); err != nil {
			return s.damage(sum, err)
		}
		if err := write(buffer[:length], offsets[i]); err != nil {
			return fmt.Errorf("writing contents of %d bytes: %w", content.Size, err)
		}
		return nil
	})
}

func (s *Snapshot) damage(sum Sum, err error) error {
	return &Damage{s.Name, s.directory.blockPath(sum), reason(err)}
}

// readBlock fills a buffer of the block's size, and verifies it.
func (d *Directory) readBlock(sum Sum, buffer []byte, cached bool) error {
	read := readDirect
	if cached {
		read = readCached
	}
	switch err := read(d.blockPath(sum), buffer); {
	case errors.Is(err, fs.ErrNotExist):
		return errMissing
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errShort
	case err != nil:
		return err
	}
	if sha256.Sum256(buffer) != [sha256.Size]byte(sum) {
		return errWrong
	}
	return nil
}

func readDirect(path string, buffer []byte) error {
	fd, direct, err := directio.Open(func(flags int) (int, error) {
		return ignoringEINTR(func() (int, error) { return unix.Open(path, flags|unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	file := directio.Of(fd)
	file.Direct.Store(direct)
	return file.Read(buffer, 0)
}

func readCached(path string, buffer []byte) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if _, err = io.ReadFull(file, buffer); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF // also where it is empty
	}
	return err
}

var (
	errMissing = errors.New("the block is missing: copy it from another copy of the directory")
	errShort   = errors.New("the block is too short: copy it from another copy of the directory")
	errWrong   = errors.New("the block has other bytes than its name says: copy it from another copy of the directory")
)

// missing lists blocks and files that are not there, or have another size.
func (s *Snapshot) missing() (list []*Damage) {
	seen := map[Sum]bool{{}: true}
	for _, content := range s.Manifest.contents() {
		for i, sum := range content.Blocks {
			if seen[sum] {
				continue
			}
			seen[sum] = true
			path := s.directory.blockPath(sum)
			info, err := os.Stat(path)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				list = append(list, &Damage{s.Name, path, errMissing.Error()})
			case err != nil:
				list = append(list, &Damage{s.Name, path, reason(err)})
			case info.Size() != wholeBlocks(content.length(i)):
				list = append(list, &Damage{s.Name, path, errShort.Error()})
			}
		}
	}
	for _, f := range s.Manifest.Files {
		path := filepath.Join(s.Folder(), f.Path)
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			list = append(list, &Damage{s.Name, path, "the file is missing"})
		case err != nil:
			list = append(list, &Damage{s.Name, path, reason(err)})
		case info.Size() != f.Size:
			list = append(list, &Damage{s.Name, path, fmt.Sprintf("the file has %d bytes, and had %d", info.Size(), f.Size)})
		}
	}
	return list
}

// VerifyFiles reads the snapshot's other files, by several threads, and leaves them in the page cache. Errors: *Damage.
func (s *Snapshot) VerifyFiles(ctx context.Context) error {
	for _, f := range s.Manifest.Files {
		damage, err := s.verifyFile(ctx, f)
		if err != nil {
			return err
		}
		if damage != nil {
			return damage
		}
	}
	return nil
}

func (s *Snapshot) verifyFile(ctx context.Context, f File) (*Damage, error) {
	path := filepath.Join(s.Folder(), f.Path)
	now, err := hashFile(ctx, s.buffers, path)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return &Damage{s.Name, path, reason(err)}, nil
	}
	if now.Size != f.Size {
		return &Damage{s.Name, path, fmt.Sprintf("the file has %d bytes, and had %d", now.Size, f.Size)}, nil
	}
	for i, sum := range f.Blocks {
		if now.Blocks[i] != sum {
			return &Damage{s.Name, path, fmt.Sprintf("the file has other bytes than it had, from %d on", int64(i)*BlockSize)},
				nil
		}
	}
	return nil, nil
}
