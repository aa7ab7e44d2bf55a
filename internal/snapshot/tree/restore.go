package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
	"tms/internal/machine/checkpoint"
	"tms/internal/machine/hostmemory"
	"tms/internal/machine/nvml"
	"tms/internal/machine/process"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// listenTime is how long a restored process may take until it listens.
const listenTime = 30 * time.Second

// ownPages are files of pages in a snapshot's own folder.
const ownPages = images + "/pages-*.img"

// reapTime is how long processes that have ended keep their numbers until a restore does not wait for them.
const reapTime = 2 * time.Second

// Restore says what to restore.
type Restore struct {
	Directory, Name string // the newest of the directory, if Name is ""
	Wait            time.Duration
	Copies          int                // each in a PID namespace of its own; 0: one, with the numbers that it had if they are free
	To              []string           // GPUs, which the copies take in turn; none: those of the snapshot
	Say             func(words string) // is told why it waits, unless it is nil
	Hook            string             // a program that runs for each copy before its GPU memory comes back, or ""
}

// Restored is a program that goes on, or says why it does not.
type Restored struct {
	Name      string   `json:"name"`
	Copy      int      `json:"copy"`
	Processes []int    `json:"processes"`        // by their numbers here
	Within    []int    `json:"within,omitempty"` // by their numbers in a PID namespace of their own
	Init      int      `json:"init,omitempty"`   // the first process there; all end with it
	GPUs      []string `json:"gpus,omitempty"`   // as To named them
	// Times since the start: when all but the contents was checked; when CRIU had ended; when the contents were here, beside
	// CRIU.
	Check    float64 `json:"check_seconds"`
	Process  float64 `json:"process_seconds"`
	Contents float64 `json:"contents_seconds"`
	Resume   float64 `json:"resume_seconds"`
	Seconds  float64 `json:"seconds"`
	Error    string  `json:"error,omitempty"`

	init *os.Process // of its namespace
	keep func()      // lets it go on without this command
}

// Do restores the program, once or several times, and returns what became of each copy. A copy that has failed is not
// here, unless its error says that it is here and paused. Errors: that none was begun; that of a copy, if it is the only
// one.
func (r Restore) Do(ctx context.Context) (all []*Restored, err error) {
	began := time.Now()
	directory, err := snapshot.Open(r.Directory)
	if err != nil {
		return nil, err
	}
	s, err := directory.Load(r.Name)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	program, err := criu.Find(ctx)
	available := hostmemory.Available("self", nil)
	if err == nil {
		shared := sharedBytes(s.Folder(), s.Manifest.Shared)
		err = cmp.Or(program.Restores(s.Manifest.Needs.CRIU), hasRoom(s.Manifest, shared, r.Copies, available))
	}
	if err != nil {
		return nil, err
	}
	s.Cached = roomToCache(s.Manifest, available)
	fits := make(chan error, 1)
	go func() { fits <- r.fits(s.Manifest) }()
	var folder *os.File
	var inMemory bool
	if err = s.VerifyFiles(ctx); err == nil {
		folder, inMemory, err = imagesFor(ctx, s)
	}
	if err = cmp.Or(<-fits, err); err != nil {
		_ = folder.Close() // if there is one
		return nil, err
	}
	checked := time.Since(began).Seconds()
	numbers := numbersOf(filepath.Join(s.Folder(), images))
	b := &begun{Restore: r, Snapshot: s, program: program, began: began, numbers: numbers,
		apart: r.Copies > 0 || !free(ctx, numbers), images: folder, inMemory: inMemory, files: map[uint64]*os.File{}}
	b.sets.of = s
	b.left.Store(int64(max(1, r.Copies)))
	defer b.close()
	b.contents.Go(func() error {
		err := copyContents(ctx, s, b.files)
		b.copied = time.Since(began).Seconds()
		return err
	})
	var copies errgroup.Group
	copies.SetLimit(runtime.NumCPU())
	for number := range max(1, r.Copies) {
		one := &Restored{Name: s.Name, Copy: number, Check: checked}
		all = append(all, one)
		copies.Go(func() error {
			err := b.restore(ctx, one)
			if err != nil {
				one.Error = err.Error()
			}
			return err
		})
	}
	if err = copies.Wait(); len(all) > 1 {
		err = nil
	}
	return all, err
}

// held returns how many bytes of contents and of private memory a snapshot has, without zeros.
func held(m *snapshot.Manifest) (contents, memory uint64) {
	for _, p := range m.Processes {
		for _, held := range p.Contents {
			contents += uint64(held.Content.Bytes())
		}
	}
	for _, pages := range m.Pages {
		memory += uint64(pages.Bytes())
	}
	return contents, memory
}

// hasRoom refuses a restore for which less host memory is available than it needs: the kernel would end some program for
// it. Contents are there once for all copies. Each copy has private memory, in which CRIU gives zeros their pages too, and
// as many bytes of shared memory as given. What CRIU reads is there as well where CRIU cannot take it away.
func hasRoom(m *snapshot.Manifest, shared uint64, copies int, available uint64) error {
	once, read := held(m)
	chunk := uint64(0) // sets pass through host memory chunk by chunk
	for _, set := range m.Sets {
		for _, c := range set.Chunks {
			chunk = max(chunk, uint64(c.Bytes()))
		}
	}
	once += chunk
	each, stays := shared, copies > 1
	for _, pages := range m.Pages {
		each += uint64(pages.Size)
	}
	for _, file := range m.Files {
		if whole, _ := filepath.Match(ownPages, file.Path); whole {
			each, stays = each+uint64(file.Size), true
		}
	}
	if stays {
		once += read
	}
	times := uint64(max(1, copies))
	if needed := once + each*times; needed > available {
		return fmt.Errorf("the restore needs %s of host memory (%s for all copies, and %d times %s), and %s is available here: "+
			"end a program, or raise the limit of this command's control group", readable.Bytes(needed), readable.Bytes(once),
			times, readable.Bytes(each), readable.Bytes(available))
	}
	return nil
}

// roomToCache reports whether the page cache may keep what the snapshot has, beside the program itself. The kernel drops
// it when memory is needed, but then drops others' files, too.
func roomToCache(m *snapshot.Manifest, available uint64) bool {
	contents, memory := held(m)
	return contents+memory <= available/3
}

// begun is a restore whose snapshot is open.
type begun struct {
	Restore
	*snapshot.Snapshot
	program  *criu.Program
	began    time.Time
	numbers  []int        // of processes and threads, when CRIU dumped them
	apart    bool         // in a PID namespace
	images   *os.File     // the folder that CRIU reads
	inMemory bool         // it is in memory
	left     atomic.Int64 // how many copies still need it
	contents errgroup.Group
	files    map[uint64]*os.File // the same for all copies
	copied   float64
	sets     placed
	inTurn   sync.Mutex
}

func (b *begun) close() {
	_ = b.contents.Wait()
	_ = b.images.Close()
	for _, file := range b.files {
		_ = file.Close()
	}
	b.sets.close()
}

// restore makes one copy: its processes by CRIU and its contents at once, then the hook, then its GPU memory.
func (b *begun) restore(ctx context.Context, one *Restored) error {
	pairs, err := b.pairs(one)
	if err == nil {
		err = b.processes(ctx, one)
		one.Process = time.Since(b.began).Seconds()
	}
	if b.left.Add(-1) == 0 {
		_ = b.images.Close() // and so the memory is free that it has
	}
	err = errors.Join(err, b.contents.Wait(), ctx.Err())
	one.Contents = b.copied
	resuming := time.Now()
	var sets []*placedSet
	if err == nil {
		sets, err = b.sets.on(ctx, pairs)
	}
	if err == nil {
		err = b.each(one, func(pid int, p snapshot.Process) error { return give(ctx, pid, p, b.files, sets) })
	}
	if err == nil {
		err = b.hook(ctx, one)
	}
	if err != nil {
		one.end()
		return err
	}
	one.keep() // it has all that it needs, so it may wait
	err = b.each(one, func(pid int, _ snapshot.Process) error {
		if err := step("resume"); err != nil {
			return err
		}
		request := control.SteerRequest{Op: control.Resume, Wait: b.Wait.Seconds()}
		return group.Resume{Request: request, Pairs: pairs}.Do(ctx, pid).Err()
	})
	if err != nil {
		return fmt.Errorf("the program is here and paused, and cannot be resumed: %w", err)
	}
	one.Resume, one.Seconds = time.Since(resuming).Seconds(), time.Since(b.began).Seconds()
	return nil
}

// processes has CRIU restore the processes of a copy, which then wait for their contents.
func (b *begun) processes(ctx context.Context, one *Restored) error {
	work, err := os.MkdirTemp("", "tms-restore-")
	if err != nil {
		return err
	}
	m := b.Manifest
	// Files of pages in the snapshot's own folder, from which CRIU would take its memory too, stay as they are.
	own, err := filepath.Glob(filepath.Join(b.Folder(), ownPages))
	if err != nil {
		return err
	}
	restore := criu.Restore{Images: b.images, Consume: len(own) == 0 && len(m.Pages) > 0 && b.Copies < 2, Work: work,
		Job: m.Job}
	one.keep = func() {}
	if b.apart {
		c := copied{Program: *b.program, Restore: restore, Streams: m.Streams, Folder: b.Folder(), Shared: m.Shared,
			Sockets: map[string]int{}}
		for _, p := range m.Processes {
			if p.Sockets != "" {
				c.Sockets[p.Sockets] = p.User
			}
		}
		if ghosts, _ := filepath.Glob(filepath.Join(b.Folder(), images, "ghost-file-*.img")); len(ghosts) > 0 {
			b.inTurn.Lock() // CRIU makes a deleted file where it was, and deletes it again
			defer b.inTurn.Unlock()
		}
		fill := func(string) error { return nil }
		if b.inMemory { // else the driver's sockets keep their names
			if c.Restore.Images, err = folderIn(b.images, fmt.Sprint("copy-", one.Copy)); err != nil {
				return err
			}
			defer c.Restore.Images.Close()
			fill = func(namespace string) error { return imagesInNamespace(b.images, c.Restore.Images, namespace) }
		}
		var numbers map[int]int
		if one.init, numbers, one.keep, err = inNamespace(c, apart(b.numbers), fill); err != nil {
			return err
		}
		one.Init = one.init.Pid
		for _, p := range m.Processes {
			if numbers[p.PID] == 0 {
				return fmt.Errorf("process %d has ended since CRIU restored it", p.PID)
			}
			one.Processes, one.Within = append(one.Processes, numbers[p.PID]), append(one.Within, p.PID)
		}
	} else {
		restore.Inherited, restore.Connected = streams(m.Streams), m.Connected && criu.KeepsConnections()
		lock, unlock, _, err := lockShared(ctx, b.Say)
		if err != nil {
			return err
		}
		restore.Lock = lock
		if err = putListed(b.Folder(), m.Shared); err == nil {
			err = restore.Run(b.program)
		}
		unlock()
		if err != nil {
			return err
		}
		for _, p := range m.Processes {
			one.Processes = append(one.Processes, p.PID)
		}
	}
	return os.RemoveAll(work)
}

// end ends processes that were restored, and cannot be used.
func (r *Restored) end() {
	if r.init != nil {
		_ = r.init.Kill()
		return
	}
	for _, pid := range r.Processes {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// hook runs the user's program for a copy.
func (b *begun) hook(ctx context.Context, one *Restored) error {
	if b.Hook == "" {
		return nil
	}
	command := exec.CommandContext(ctx, b.Hook)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	directory, err := filepath.Abs(b.Directory)
	if err != nil {
		return err
	}
	command.Env = append(os.Environ(), fmt.Sprint("TMS_RESTORE_COPY=", one.Copy), fmt.Sprint("TMS_RESTORE_PID=",
		one.Processes[0]), "TMS_RESTORE_GPU="+strings.Join(one.GPUs, ","), "TMS_RESTORE_DIR="+directory)
	if err := command.Run(); err != nil {
		return fmt.Errorf("the hook %s has failed (%w), and so this copy has ended", b.Hook, err)
	}
	return nil
}

// pairs returns where a copy's GPUs are: the copies take those of To in turn.
func (b *begun) pairs(one *Restored) ([]checkpoint.Pair, error) {
	gpus := b.Manifest.Needs.GPUs
	if len(b.To) == 0 {
		return nil, nil
	}
	var of []nvml.Device
	for i, gpu := range gpus {
		of = append(of, nvml.Device{UUID: gpu.UUID, Name: gpu.Model})
		one.GPUs = append(one.GPUs, b.To[(one.Copy*len(gpus)+i)%len(b.To)])
	}
	return group.Pairs(of, one.GPUs)
}

// fits refuses a snapshot that cannot be restored here, before anything is started.
func (r Restore) fits(m *snapshot.Manifest) error {
	if m.Needs.Machine != runtime.GOARCH {
		return fmt.Errorf("the snapshot is of a program for %s, and this machine is %s", m.Needs.Machine, runtime.GOARCH)
	}
	if count := len(m.Needs.GPUs); len(r.To) > 0 && (count == 0 || len(r.To)%count != 0) {
		return fmt.Errorf("the program uses %d GPUs, and --to names %d: name as many for each copy", count, len(r.To))
	}
	if r.Hook != "" {
		if _, err := exec.LookPath(r.Hook); err != nil {
			return fmt.Errorf("the hook cannot be run: %w", err)
		}
	}
	if err := lackedFiles(m.Needs.Mapped); err != nil {
		return err
	}
	return hasGPUs(m.Needs, len(r.To) > 0)
}

// free reports whether no process or thread has one of the numbers, nor a group of processes. Those that have just ended
// may still be waited for.
func free(ctx context.Context, numbers []int) bool {
	for until := time.Now().Add(reapTime); ; time.Sleep(10 * time.Millisecond) {
		if !slices.ContainsFunc(numbers, func(number int) bool {
			return unix.Kill(number, 0) != unix.ESRCH || unix.Kill(-number, 0) != unix.ESRCH
		}) {
			return true
		}
		lives := slices.ContainsFunc(numbers, func(number int) bool {
			_, zombie, err := process.Started(number)
			return err == nil && !zombie
		})
		if lives || ctx.Err() != nil || time.Now().After(until) {
			return false
		}
	}
}

// streams are this command's own, in place of those that came from outside.
func streams(of map[string]int) map[string]*os.File {
	inherited := map[string]*os.File{}
	for name, number := range of {
		inherited[name] = []*os.File{os.Stdin, os.Stdout, os.Stderr}[number]
	}
	return inherited
}

// copyContents makes a file in memory of each that a process held, all at once: the kernel gives memory to several files
// faster than to one.
func copyContents(ctx context.Context, s *snapshot.Snapshot, files map[uint64]*os.File) error {
	copies, ctx := errgroup.WithContext(ctx)
	for _, p := range s.Manifest.Processes {
		for _, held := range p.Contents {
			file, err := snapshot.NewMemory(held.Size)
			if err != nil {
				return errors.Join(err, copies.Wait())
			}
			files[held.Number] = file
			copies.Go(func() error {
				if err := step("copy"); err != nil {
					return err
				}
				if err := s.Copy(ctx, held.Content, file); err != nil {
					return err
				}
				_, err := snapshot.Seal(file) // all copies have the same one
				return err
			})
		}
	}
	return copies.Wait()
}

// each does something with all processes of a copy that tms steers, at once.
func (b *begun) each(one *Restored, do func(pid int, p snapshot.Process) error) error {
	var all errgroup.Group
	for i, p := range b.Manifest.Processes {
		if p.Steered {
			all.Go(func() error {
				pid := one.Processes[i]
				if err := do(pid, p); err != nil {
					return fmt.Errorf("process %d: %w", pid, err)
				}
				return nil
			})
		}
	}
	return all.Wait()
}

// give gives a restored process what it held.
func give(ctx context.Context, pid int, p snapshot.Process, files map[uint64]*os.File, sets []*placedSet) error {
	if err := step("give"); err != nil {
		return err
	}
	connection, err := client.Dial(pid)
	for until := time.Now().Add(listenTime); err != nil && time.Now().Before(until) && ctx.Err() == nil; {
		time.Sleep(2 * time.Millisecond)
		connection, err = client.Dial(pid)
	}
	if err != nil {
		return err
	}
	defer connection.Close()
	for _, held := range p.Contents {
		if err := connection.Put(ctx, held.Number, 0, files[held.Number]); err != nil {
			return err
		}
	}
	return giveSets(ctx, connection, p, sets)
}
