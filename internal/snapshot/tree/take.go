package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
}

// Taken is a snapshot that was taken.
type Taken struct {
	Name      string  `json:"name"`
	Processes []int   `json:"processes"`
	Stood     float64 `json:"stood_seconds"` // how long the program stood still, unless it has ended
	Seconds   float64 `json:"seconds"`
	snapshot.Progress
	Images int64 `json:"image_bytes"`
}

// Do takes the snapshot. After an error there is none, and the tree goes on, or waits for a tms resume that the error
// names. The same is so if this process is killed, whenever that happens.
func (t Take) Do(ctx context.Context) (taken *Taken, err error) {
	began := time.Now()
	program, err := criu.Find(ctx)
	if err != nil {
		return nil, err
	}
	tree, err := Find(t.PID)
	if err != nil {
		return nil, err
	}
	if len(tree.Steered) == 0 {
		return nil, fmt.Errorf("no process of %d and below listens to tms, so there is no GPU memory to save: start it by tms "+
			"run", t.PID)
	}
	directory, err := snapshot.Create(t.Directory)
	if err != nil {
		return nil, err
	}
	name := snapshot.NewName(began, t.PID)
	writer, err := directory.Begin(name)
	if err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "tms-snapshot-")
	if err == nil {
		err = os.Mkdir(filepath.Join(writer.Folder(), images), 0o700)
	}
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
	parking := time.Now()
	if err = step("park"); err == nil {
		err = g.Park(ctx, t.Pause, t.User)
	}
	if err != nil {
		_ = os.RemoveAll(work)
		return nil, err
	}
	taken = &Taken{Name: name}
	goesOn := func() error {
		err := g.GoOn()
		taken.Stood = time.Since(parking).Seconds()
		return err
	}
	manifest := t.manifest(tree, needs(g, program))
	d := dumping{tree: tree, program: program, images: filepath.Join(writer.Folder(), images), work: work}
	commit := func() error {
		if err := step("commit"); err != nil {
			return err
		}
		taken.Images = sizeOf(d.images)
		return writer.Commit(context.WithoutCancel(ctx), manifest)
	}
	contents := func() error { return save(ctx, writer, g, manifest) }
	if t.Stop {
		if err = d.andEnd(ctx, contents, commit); err != nil {
			return nil, both(err, goesOn())
		}
	} else {
		var all errgroup.Group
		all.Go(contents)
		err = d.run("")
		var left error
		early := err == nil && sealed(g)
		if early { // the contents stay as they are
			left = goesOn()
		}
		if err = errors.Join(err, all.Wait(), ctx.Err()); !early {
			left = goesOn()
		}
		if err == nil {
			err = commit()
		}
		if err != nil {
			return nil, both(err, left)
		}
		if left != nil { // the snapshot is whole
			fmt.Fprintf(os.Stderr, "tms: the snapshot is complete, but the program does not go on: %v\n", left)
		}
	}
	for _, p := range tree.Processes {
		taken.Processes = append(taken.Processes, p.PID)
	}
	taken.Progress, taken.Seconds = writer.Progress(), time.Since(began).Seconds()
	return taken, nil
}

// step names a step, before which a test makes the command fail or end.
func step(name string) error { return failpoint.Err("snapshot " + name) }

func both(err, left error) error {
	if left != nil {
		return fmt.Errorf("%w; the program does not go on: %w", err, left)
	}
	return fmt.Errorf("%w; the program goes on", err)
}

func (t Take) manifest(tree *Tree, needs snapshot.Needs) *snapshot.Manifest {
	return &snapshot.Manifest{Tms: release.Version, Processes: tree.Processes, Job: tree.Job, Streams: tree.Streams,
		Needs: needs}
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
	tree         *Tree
	program      *criu.Program
	images, work string
}

func (d dumping) run(ends string) error {
	if err := step("dump"); err != nil {
		return err
	}
	return criu.Dump{PID: d.tree.Processes[0].PID, Images: d.images, Work: d.work, Job: d.tree.Job, Ends: ends}.Run(d.program)
}

// andEnd has the tree end once the snapshot is complete. Until then it stands still in CRIU, which lets it go on if this
// process ends.
func (d dumping) andEnd(ctx context.Context, contents, commit func() error) error {
	dumped, complete, failed := filepath.Join(d.work, "dumped"), filepath.Join(d.work, "complete"), filepath.Join(d.work, "failed")
	ends := fmt.Sprintf(": >%q\nwhile [ ! -e %q ]; do\n  [ ! -e %q ] && kill -0 %d || exit 1\n  sleep 0.01\ndone", dumped,
		complete, failed, os.Getpid())
	ended := make(chan error, 1)
	saved := make(chan error, 1)
	go func() { ended <- d.run(ends) }()
	go func() { saved <- contents() }()
	var err error
	for done := false; !done; {
		select {
		case err = <-ended: // it has failed
			<-saved
			if err == nil {
				err = errors.New("CRIU has ended too soon")
			}
			return err
		case <-time.After(5 * time.Millisecond):
			_, missing := os.Stat(dumped)
			done = missing == nil
		}
	}
	err = errors.Join(<-saved, ctx.Err())
	if err == nil {
		err = commit()
	}
	answer := complete
	if err != nil {
		answer = failed
	}
	if err = errors.Join(err, step("end"), os.WriteFile(answer, nil, 0o600)); err != nil {
		_ = os.WriteFile(failed, nil, 0o600)
	}
	return errors.Join(err, ignoring(err, <-ended))
}

// ignoring returns the second error only without the first.
func ignoring(first, second error) error {
	if first != nil {
		return nil
	}
	return second
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
