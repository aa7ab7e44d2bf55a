package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	release "tms"
	"tms/internal/aid/failpoint"
	"tms/internal/control"
	"tms/internal/group"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

const images = "images" // folder of CRIU's files in a snapshot

// Take says of what to take a snapshot.
type Take struct {
	PID       int
	Directory string
	Stop      bool                 // the tree ends, else it goes on
	Pause     control.SteerRequest // its timeout, force and place for contents
	User      string               // who takes it, for tms ps after the restore
	Say       func(words string)   // is told why it waits, unless it is nil
	Lease     time.Duration        // how long this process may be stopped until the tree goes on without it
}

// DefaultLease is the lease of commands and of the server.
const DefaultLease = time.Minute

// Pausing returns the request for the pause of a snapshot. timeout is in seconds.
func Pausing(timeout float64, force bool) control.SteerRequest {
	return control.SteerRequest{Timeout: &timeout, Force: force, To: control.ToMemory, SaveAll: true, SaveSets: true}
}

// Taken is a snapshot that was taken.
type Taken struct {
	Name      string  `json:"name"`
	Processes []int   `json:"processes"`
	Stood     float64 `json:"stood_seconds"` // how long the program stood still, unless it has ended
	Seconds   float64 `json:"seconds"`
	snapshot.Progress
	// Memory has of the processes' private memory what Progress has of the contents.
	Memory snapshot.Progress `json:"memory"`
	Images int64             `json:"image_bytes"` // of CRIU's other files
	// Note says why the program stood still for longer than it must, and why its TCP connections do not come back; or "".
	Note string `json:"note,omitempty"`
	// Warning says why the program does not go on, although its snapshot is complete; or "".
	Warning string `json:"warning,omitempty"`
	// Seconds of parts: until all stands paused and parked; of CRIU's dump, with --stop until the program has ended; until
	// the program went on; of the contents into blocks, beside the dump; of the memory into blocks, the hashes of images and
	// the disk at the end.
	Pause  float64 `json:"pause_seconds"`
	Dump   float64 `json:"dump_seconds"`
	GoesOn float64 `json:"goes_on_seconds"`
	Blocks float64 `json:"blocks_seconds"`
	Commit float64 `json:"commit_seconds"`
}

// Do takes the snapshot. After an error there is none, and the tree goes on, or waits for a tms resume that the error
// names. The same is so if this process is killed, whenever that happens.
func (t Take) Do(ctx context.Context) (taken *Taken, err error) {
	began := time.Now()
	program, err := criu.Find(ctx)
	if err != nil {
		return nil, err
	}
	tree, files, err := t.look()
	if err != nil {
		return nil, err
	}
	directory, err := snapshot.Create(t.Directory)
	if err != nil {
		return nil, err
	}
	lock, unlock, waited, err := lockShared(ctx, t.Say) // the program goes on until it is this command's turn
	if err != nil {
		return nil, err
	}
	defer unlock()
	if waited {
		if tree, files, err = t.look(); err != nil {
			return nil, err
		}
	}
	name := snapshot.NewName(began, t.PID)
	writer, err := directory.Begin(name)
	if err != nil {
		return nil, err
	}
	if err = tree.wake(); err != nil {
		writer.Abort()
		return nil, err
	}
	work, err := os.MkdirTemp("", "tms-snapshot-")
	defer func() {
		if err != nil {
			writer.Abort()
			return // CRIU's log stays
		}
		_ = os.RemoveAll(work)
	}()
	if err != nil {
		return nil, err
	}
	g := group.Alone(tree.Steered[0])
	if len(tree.Steered) > 1 {
		g = group.Together(tree.Steered...)
	}
	defer g.Close()
	caches := cachesOf(tree.Processes)
	parking := time.Now()
	if err = step("park"); err == nil {
		err = g.Park(ctx, t.Pause, t.User, t.Lease)
	}
	if err != nil {
		_ = os.RemoveAll(work)
		return nil, err
	}
	taken = &Taken{Name: name, Pause: time.Since(parking).Seconds()}
	parked := time.Now()
	goesOn := func() error {
		defer lasts(&taken.GoesOn)()
		err := g.GoOn()
		taken.Stood = time.Since(parking).Seconds()
		return err
	}
	manifest := t.manifest(tree)
	if err = tree.closed(); err != nil {
		_ = os.RemoveAll(work)
		return nil, both(err, goesOn())
	}
	open, err := openSets(tree, g)
	defer func() {
		for _, set := range open {
			set.close()
		}
	}()
	if err != nil {
		_ = os.RemoveAll(work)
		return nil, both(err, goesOn())
	}
	staging, err := stage(tree, writer.Folder())
	if err != nil {
		return nil, both(err, goesOn())
	}
	defer staging.close()
	taken.Note = staging.note
	keeps, _ := connected(tree.now())
	d := dumping{connected: keeps, Take: t, tree: tree, group: g, program: program, images: staging.images, work: work,
		lock: lock}
	var still *Tree // as CRIU has it
	shared := func() (err error) {
		if err = step("shared"); err == nil {
			still, err = tree.again()
		}
		if err == nil {
			manifest.Shared, err = saveShared(still, staging.path)
		}
		if err == nil {
			are, waits := connected(still.Processes)
			manifest.Connected = d.connected && are && !waits
			taken.noteClosed(d.connected, are, waits)
			err = noteRemaps(manifest.Shared)
		}
		return err
	}
	commit := func() error {
		defer lasts(&taken.Commit)()
		if err := step("commit"); err != nil {
			return err
		}
		var err error
		manifest.Needs = needs(g, program)
		manifest.Needs.Mapped, manifest.Needs.Caches = files, caches
		if manifest.Pages, err = staging.keep(ctx, writer); err != nil {
			return err
		}
		taken.Images = sizeOf(filepath.Join(writer.Folder(), images))
		manifest.Processes = still.with(manifest.Processes)
		return writer.Commit(context.WithoutCancel(ctx), manifest)
	}
	contents := func() error {
		defer lasts(&taken.Blocks)()
		err := save(ctx, writer, g, manifest)
		if err == nil {
			manifest.Sets, err = saveSets(ctx, writer, open)
		}
		return err
	}
	if sealed := sealed(g); t.Stop || !sealed {
		err = d.waiting(ctx, contents, func() error {
			if err := shared(); err != nil {
				return err
			}
			return commit()
		})
		unlock()
		if err != nil {
			return nil, both(err, goesOn())
		}
		if taken.Dump = time.Since(parked).Seconds(); !t.Stop {
			taken.warn(goesOn())
		}
	} else {
		var all errgroup.Group
		all.Go(contents)
		err = d.waiting(ctx, func() error { return nil }, shared)
		unlock()
		if err == nil {
			err = g.Parked()
		}
		taken.Dump = time.Since(parked).Seconds()
		left := goesOn() // the contents stay as they are
		if err = errors.Join(err, all.Wait(), ctx.Err()); err == nil {
			err = commit()
		}
		if err != nil {
			return nil, both(err, left)
		}
		taken.warn(left)
	}
	for _, p := range tree.Processes {
		taken.Processes = append(taken.Processes, p.PID)
	}
	taken.Progress, taken.Memory, taken.Seconds = writer.Progress(), writer.Memory(), time.Since(began).Seconds()
	return taken, nil
}

// look finds the program, which goes on, and the files that it has mapped.
func (t Take) look() (*Tree, []snapshot.Mapped, error) {
	tree, err := Find(t.PID)
	if err != nil {
		return nil, nil, err
	}
	if len(tree.Steered) == 0 {
		return nil, nil, fmt.Errorf("no process of %d and below listens to tms, so there is no GPU memory to save: start it by "+
			"tms run", t.PID)
	}
	files, err := mapped(tree.Processes)
	return tree, files, err
}

// lasts puts into seconds how long something takes, until the function that it returns is called.
func lasts(seconds *float64) (done func()) {
	began := time.Now()
	return func() { *seconds = time.Since(began).Seconds() }
}

// step names a step, before which a test makes the command fail or end.
func step(name string) error { return failpoint.Err("snapshot " + name) }

func both(err, left error) error {
	if left != nil {
		return fmt.Errorf("%w; the program does not go on: %w", err, left)
	}
	return fmt.Errorf("%w; the program goes on", err)
}

func (t *Taken) warn(left error) {
	if left != nil {
		t.Warning = fmt.Sprintf("the snapshot is complete, but the program does not go on: %v", left)
	}
}

// noteClosed notes that a restore closes connections which CRIU has dumped.
func (t *Taken) noteClosed(dumped, are, waits bool) {
	because := "others were opened or closed while the snapshot was taken"
	if waits {
		because = "one end had sent what the other had not read"
	}
	if dumped && (!are || waits) {
		words := "a restore closes the TCP connections between the processes, because " + because
		t.Note = strings.TrimPrefix(t.Note+"; "+words, "; ")
	}
}

func (t Take) manifest(tree *Tree) *snapshot.Manifest {
	return &snapshot.Manifest{Tms: release.Version, Processes: tree.Processes, Job: tree.Job, Streams: tree.Streams}
}

// sealed reports whether all contents stay as they are when their processes go on.
func sealed(g *group.Group) bool {
	for _, m := range g.Members {
		for _, c := range m.Contents {
			if is, err := snapshot.Seal(c.File); err != nil || !is {
				return false
			}
		}
	}
	return true
}

// save puts what the processes hold into blocks.
func save(ctx context.Context, writer *snapshot.Writer, g *group.Group, manifest *snapshot.Manifest) error {
	for _, m := range g.Members {
		for i := range manifest.Processes {
			p := &manifest.Processes[i]
			if p.PID != m.PID {
				continue
			}
			p.Parts = slices.Sorted(maps.Keys(m.Parts))
			for _, c := range m.Contents {
				if err := step("contents"); err != nil {
					return err
				}
				content, err := writer.Add(ctx, c.File, c.Bytes)
				if err != nil {
					return err
				}
				p.Contents = append(p.Contents, snapshot.Held{Number: c.Number, Content: content})
			}
		}
	}
	return nil
}

// dumping is a run of CRIU.
type dumping struct {
	Take
	tree    *Tree
	group   *group.Group
	program *criu.Program
	images  *os.File
	work    string
	lock    *os.File
	// connected: CRIU keeps TCP connections.
	connected bool
}

func (d dumping) run(then string) error {
	if err := cmp.Or(step("dump"), d.group.Parked()); err != nil {
		return err
	}
	return criu.Dump{PID: d.tree.Processes[0].PID, Images: d.images, Work: d.work, Job: d.tree.Job, Then: then,
		Ends: d.Stop, Connected: d.connected, Lock: d.lock}.Run(d.program)
}

// untilAnswered is what CRIU runs while the tree stands still. It fails if this process, %[4]d, ends or is a zombie, or is
// stopped: then "alive" stays as it is while the loop runs %[5]d times.
const untilAnswered = `: >%[1]q
last= silent=0
while [ ! -e %[2]q ]; do
  [ ! -e %[3]q ] && read -r state </proc/%[4]d/stat || exit 1
  case $state in *") Z "* | *") X "*) exit 1 ;; esac
  read -r now <%[6]q
  [ "$now" = "$last" ] || silent=0
  last=$now silent=$((silent + 1))
  [ $silent -lt %[5]d ] || exit 1
  sleep 0.01
done`

// waiting has the tree stand still in CRIU until contents are saved and commit has returned. It goes on if this process
// ends or is stopped.
func (d dumping) waiting(ctx context.Context, contents, commit func() error) error {
	file := func(name string) string { return filepath.Join(d.work, name) }
	quiet := d.beats(file("alive"))
	defer quiet()
	ended, saved := make(chan error, 1), make(chan error, 1)
	go func() {
		ended <- d.run(fmt.Sprintf(untilAnswered, file("dumped"), file("complete"), file("failed"), os.Getpid(),
			d.Lease/(10*time.Millisecond), file("alive")))
	}()
	go func() { saved <- contents() }()
	var err error
	gone, dumped := false, false
	for !gone && !dumped {
		select {
		case err = <-ended:
			gone = true
		case <-time.After(5 * time.Millisecond):
			_, missing := os.Stat(file("dumped"))
			dumped = missing == nil
		}
	}
	if err = errors.Join(err, <-saved, ctx.Err()); !gone {
		select {
		case failed := <-ended: // before it had an answer
			gone, err = true, errors.Join(err, failed)
		default:
			err = errors.Join(err, d.group.Parked())
		}
	}
	if gone {
		return cmp.Or(err, errors.New("CRIU has ended too soon"))
	}
	if err == nil {
		err = commit()
	}
	complete, answer := err == nil, file("complete")
	if err = cmp.Or(err, step("end")); err != nil {
		answer = file("failed")
	}
	err = cmp.Or(err, os.WriteFile(answer, nil, 0o600))
	quiet() // CRIU comes to its end even if it cannot be answered
	failed := <-ended
	if err = cmp.Or(err, failed); err != nil && complete && d.Stop {
		return fmt.Errorf("the snapshot is complete, but the program could not be ended: %w", err)
	}
	return err
}

// beats writes something else into a file again and again, until quiet.
func (d dumping) beats(path string) (quiet func()) {
	done := make(chan struct{})
	go func() {
		for beat := 0; ; beat++ {
			_ = os.WriteFile(path, []byte(fmt.Sprintln(beat)), 0o600) // else it is silent
			select {
			case <-done:
				return
			case <-time.After(d.Lease / 8):
			}
		}
	}()
	return sync.OnceFunc(func() { close(done) })
}

func sizeOf(folder string) (bytes int64) {
	entries, _ := os.ReadDir(folder)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
		}
	}
	return bytes
}
