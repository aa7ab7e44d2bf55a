package snapshot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"tms/internal/aid/directio"
)

// The private memory of processes has tens of thousands of blocks, so they are not files of their own: each snapshot
// writes its new ones into packs, one after another. A pack has no index, because the manifest of each snapshot says
// where its blocks are. Only packs of complete snapshots are shared, and so a pack is written by one Writer alone.

const packsName = "packs" // folder in DIR/blocks

// Place says where a block is: the pack, by its number in Manifest.Packs, and the offset in it.
type Place [2]int64

// pack is one that is being written.
type pack struct {
	file   directio.File
	fd     int
	path   string
	number int64
	size   int64
}

func (d *Directory) packPath(name string) string {
	return filepath.Join(d.path, blocksName, packsName, name)
}

// AddPages puts a file of private memory that CRIU has written into blocks of these lengths, which are multiples of
// directio.Block. It takes away from the file what it has read, where the file system can, so there is no need of room
// for both. No other may change the file until AddPages returns.
func (w *Writer) AddPages(ctx context.Context, file *os.File, lengths []int64) (Content, error) {
	content := Content{Blocks: make([]Sum, len(lengths)), Lengths: lengths, Places: make([]Place, len(lengths))}
	for _, length := range lengths {
		if length <= 0 || length > BlockSize || length%directio.Block != 0 {
			return Content{}, w.failing(fmt.Errorf("a block of %d bytes is not of whole pages, or too large", length))
		}
		content.Size += length
	}
	runs, offsets := content.runs(func(int) bool { return true }), content.offsets()
	err := w.buffers.each(ctx, len(runs), func(i int, buffer []byte) error {
		first, length := runs[i].first, runs[i].length
		if _, err := file.ReadAt(buffer[:length], offsets[first]); err != nil {
			return fmt.Errorf("reading the memory of a process: %w", err)
		}
		_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offsets[first], length)
		w.memory.read.Add(length)
		return w.addRun(content, runs[i], buffer[:length])
	})
	return content, w.failing(err)
}

// addRun gives blocks that follow each other their places. Those that are new go into a pack, by one request.
func (w *Writer) addRun(content Content, r run, memory []byte) (err error) {
	var into *pack
	filled := int64(0)
	defer func() { w.giveBack(into) }()
	for i, rest := r.first, memory; i < r.end; i++ {
		block := rest[:content.length(i)]
		rest = rest[len(block):]
		if bytes.Equal(block, zeros[:len(block)]) {
			w.memory.zero.Add(int64(len(block)))
			continue
		}
		sum := Sum(sha256.Sum256(block))
		if into == nil && !w.has(sum) {
			if into, err = w.takePack(); err != nil {
				return err
			}
		}
		place, isNew := w.place(sum, into, filled)
		content.Blocks[i], content.Places[i] = sum, place
		if !isNew {
			w.memory.shared.Add(int64(len(block)))
			continue
		}
		copy(memory[filled:], block) // nothing of the rest is overwritten: filled is at most where the block was
		filled += int64(len(block))
	}
	if filled == 0 {
		return nil
	}
	if err = into.file.Write(memory[:filled], into.size); err != nil {
		return w.directory.failed("writing", into.path, err)
	}
	into.size += filled
	w.memory.written.Add(filled)
	return nil
}

func (w *Writer) has(sum Sum) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.places[sum]
	return has
}

// place returns where a block is, or, if it is nowhere, will be: in a pack, behind what else this run has for it.
func (w *Writer) place(sum Sum, into *pack, filled int64) (place Place, isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	place, has := w.places[sum]
	if !has {
		place = Place{into.number, into.size + filled}
		w.places[sum] = place
	}
	return place, !has
}

// takePack returns a pack that no other thread writes to.
func (w *Writer) takePack() (*pack, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := len(w.idle) - 1; last >= 0 {
		into := w.idle[last]
		w.idle = w.idle[:last]
		return into, nil
	}
	folder := w.directory.packPath("")
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, w.directory.failed("making", folder, err)
	}
	for number := len(w.packs); ; number++ { // an earlier snapshot may have had this name
		name := fmt.Sprintf("%s.%d", w.name, number)
		path := w.directory.packPath(name)
		fd, direct, err := directio.Open(func(flags int) (int, error) { return create(path, flags|unix.O_EXCL) })
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, w.directory.failed("making", path, err)
		}
		into := &pack{file: directio.Of(fd), fd: fd, path: path, number: int64(len(w.packs))}
		into.file.Direct.Store(direct)
		w.packs, w.open = append(w.packs, name), append(w.open, into)
		return into, nil
	}
}

func (w *Writer) giveBack(into *pack) {
	if into != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.idle = append(w.idle, into)
	}
}

func (w *Writer) closePacks() {
	for _, p := range w.open {
		_ = unix.Close(p.fd)
	}
	w.open, w.idle = nil, nil
}

// share lets the writer rely on blocks that a complete snapshot has in packs, which were on the disk before it was
// complete. A pack that is missing or too short now is not relied on.
func (w *Writer) share(m *Manifest) {
	numbers, sizes := make([]int64, len(m.Packs)), make([]int64, len(m.Packs))
	for i, name := range m.Packs {
		if info, err := os.Stat(w.directory.packPath(name)); err == nil {
			sizes[i] = info.Size()
		}
		numbers[i] = w.numberOf(name)
	}
	for _, content := range m.contents() {
		for i, place := range content.Places {
			if sum := content.Blocks[i]; sum != (Sum{}) && place[1]+content.length(i) <= sizes[place[0]] {
				w.places[sum] = Place{numbers[place[0]], place[1]}
			}
		}
	}
}

// numberOf returns the number of a pack in the manifest that is being made.
func (w *Writer) numberOf(name string) int64 {
	for i, known := range w.packs {
		if known == name {
			return int64(i)
		}
	}
	w.packs = append(w.packs, name)
	return int64(len(w.packs) - 1)
}

// keepUsed leaves out packs in which the snapshot has no block, and numbers the others again.
func keepUsed(packs []string, contents []Content) (used []string) {
	numbers := map[int64]int64{}
	for _, content := range contents {
		for i, sum := range content.Blocks {
			if content.Places == nil || sum == (Sum{}) {
				continue
			}
			old := content.Places[i][0]
			number, has := numbers[old]
			if !has {
				number = int64(len(used))
				numbers[old], used = number, append(used, packs[old])
			}
			content.Places[i][0] = number
		}
	}
	return used
}

// goodPack reports whether a manifest may name such a pack.
func goodPack(name string) bool {
	return name != "" && name == filepath.Base(name) && !strings.HasPrefix(name, ".")
}
