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
	// Cached has Copy read blocks through the page cache, so that the next one finds them there.
	Cached bool

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

// Copy makes a file in memory that has a content. The blocks are read to where they stay, by several threads: a write
// would let one at a time into a file. Each is verified there, and after an error the file is not to be used. It may be
// sparse afterwards. Errors: *Damage.
func (s *Snapshot) Copy(ctx context.Context, content Content, file *os.File) error {
	noRoom := func(err error) error {
		return fmt.Errorf("making room for %d bytes of contents: %w", content.Size, err)
	}
	for _, size := range []int64{0, content.Size} { // a file that had contents is empty first
		if err := file.Truncate(size); err != nil {
			return noRoom(err)
		}
	}
	if content.Size == 0 {
		return nil
	}
	memory, err := unix.Mmap(int(file.Fd()), 0, int(wholeBlocks(content.Size)), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping %d bytes of contents: %w", content.Size, err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	_ = unix.Madvise(memory, unix.MADV_HUGEPAGE) // where the system lets it
	runs, offsets := content.runs(content.inTurn), content.offsets()
	return s.buffers.each(ctx, len(runs), func(i int, _ []byte) (err error) {
		r := runs[i]
		if content.Blocks[r.first] == (Sum{}) {
			return nil
		}
		target := memory[offsets[r.first]:][:wholeBlocks(r.length)]
		if err := unix.Madvise(target, unix.MADV_POPULATE_WRITE); err != nil && err != unix.EINVAL {
			return noRoom(err) // before Linux 5.14, which refuses this, the read makes room
		}
		s.readRun(content, r, target, s.Cached, func(block int, wrong error) {
			if wrong != nil && err == nil {
				err = s.damage(content, block, wrong)
			}
		})
		return err
	})
}

// readRun reads blocks that follow each other on the disk, and says of each what is wrong, or nil.
func (s *Snapshot) readRun(content Content, r run, buffer []byte, cached bool, verdict func(block int, wrong error)) {
	at := s.stored(content, r.first)
	failed := readFile(at.path, buffer[:wholeBlocks(r.length)], at.offset, cached)
	for i, rest := r.first, buffer; i < r.end; i++ {
		block := rest[:wholeBlocks(content.length(i))]
		rest = rest[len(block):]
		wrong := failed
		if failed == nil && sha256.Sum256(block) != [sha256.Size]byte(content.Blocks[i]) {
			wrong = errWrong
		}
		verdict(i, wrong)
	}
}

// stored is where a block is on the disk.
type stored struct {
	path   string
	offset int64
}

func (s *Snapshot) stored(content Content, block int) stored {
	if content.Places == nil {
		return stored{path: s.directory.blockPath(content.Blocks[block])}
	}
	place := content.Places[block]
	return stored{s.directory.packPath(s.Manifest.Packs[place[0]]), place[1]}
}

func (s *Snapshot) damage(content Content, block int, wrong error) *Damage {
	at, what := s.stored(content, block), reason(wrong)
	if content.Places != nil && wrong == errWrong {
		what = fmt.Sprintf("%s (%d bytes from %d on)", what, content.length(block), at.offset)
	}
	return &Damage{s.Name, at.path, what}
}

// readBlock fills a buffer of the block's size, and verifies it.
func (d *Directory) readBlock(sum Sum, buffer []byte) error {
	if err := readFile(d.blockPath(sum), buffer, 0, false); err != nil {
		return err
	}
	if sha256.Sum256(buffer) != [sha256.Size]byte(sum) {
		return errWrong
	}
	return nil
}

// readFile fills a buffer from a file with blocks, through the page cache or past it.
func readFile(path string, buffer []byte, offset int64, cached bool) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return errMissing
	}
	if err != nil {
		return err
	}
	defer file.Close()
	if cached {
		_, err = file.ReadAt(buffer, offset)
	} else {
		fd := int(file.Fd())
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_DIRECT) // a file system that refuses reads through it
		err = directio.Of(fd).Read(buffer, offset)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errShort
	}
	return err
}

var (
	errMissing = errors.New("the block is missing: copy it from another copy of the directory")
	errShort   = errors.New("the block is too short: copy it from another copy of the directory")
	errWrong   = errors.New("the block has other bytes than its hash says: copy it from another copy of the directory")
)

// missing lists blocks and files that are not there, or have another size. Of a pack it says so once.
func (s *Snapshot) missing() (list []*Damage) {
	seen := map[Sum]bool{{}: true}
	packs := make([]int64, len(s.Manifest.Packs)) // how many bytes each must have
	for _, content := range s.Manifest.contents() {
		for i, sum := range content.Blocks {
			if content.Places != nil && sum != (Sum{}) {
				place := content.Places[i]
				packs[place[0]] = max(packs[place[0]], place[1]+content.length(i))
			} else if !seen[sum] {
				seen[sum] = true
				if wrong := sizeIs(s.directory.blockPath(sum), wholeBlocks(content.length(i)), false); wrong != nil {
					list = append(list, s.damage(content, i, wrong))
				}
			}
		}
	}
	for i, name := range s.Manifest.Packs {
		path := s.directory.packPath(name)
		if wrong := sizeIs(path, packs[i], true); wrong != nil {
			list = append(list, &Damage{s.Name, path, reason(wrong)})
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

// sizeIs returns what is wrong with a file of blocks that has this size, or at least this size.
func sizeIs(path string, size int64, least bool) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return errMissing
	case err != nil:
		return err
	case info.Size() < size || !least && info.Size() != size:
		return errShort
	}
	return nil
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
