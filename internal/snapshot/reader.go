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
	runs, offsets := content.runs(content.inTurn), content.offsets()
	return s.buffers.each(ctx, len(runs), func(i int, buffer []byte) (err error) {
		r := runs[i]
		if content.Blocks[r.first] == (Sum{}) {
			return nil
		}
		s.readRun(content, r, buffer, true, func(block int, wrong error) {
			if wrong != nil && err == nil {
				err = s.damage(content, block, wrong)
			}
		})
		if err != nil {
			return err
		}
		if _, err := file.WriteAt(buffer[:r.length], offsets[r.first]); err != nil {
			return fmt.Errorf("writing contents of %d bytes: %w", content.Size, err)
		}
		return nil
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

// readFile fills a buffer from a file with blocks, past the page cache. cached has it first take what the page cache has.
func readFile(path string, buffer []byte, offset int64, cached bool) error {
	fd, err := ignoringEINTR(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if errors.Is(err, fs.ErrNotExist) {
		return errMissing
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if cached {
		done := readCached(fd, buffer, offset)
		buffer, offset = buffer[done:], offset+int64(done)
	}
	_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_DIRECT) // a file system that refuses reads through the page cache
	if err = directio.Of(fd).Read(buffer, offset); errors.Is(err, io.ErrUnexpectedEOF) {
		return errShort
	}
	return err
}

// readCached reads what the page cache has from an offset on, without a request to the disk, and returns how many bytes:
// a multiple of directio.Block. (RWF_NOWAIT)
func readCached(fd int, buffer []byte, offset int64) (done int) {
	for done < len(buffer) {
		n, err := unix.Preadv2(fd, [][]byte{buffer[done:]}, offset+int64(done), unix.RWF_NOWAIT)
		if n /= directio.Block; err != nil || n == 0 {
			break
		}
		done += n * directio.Block
	}
	return done
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
