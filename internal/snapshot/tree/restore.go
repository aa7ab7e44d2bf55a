package tree

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/group"
	"tms/internal/snapshot"
	"tms/internal/snapshot/criu"
)

// listenTime is how long a restored process may take until it listens.
const listenTime = 30 * time.Second

// Restore says what to restore.
type Restore struct {
	Directory, Name string // the newest of the directory, if Name is ""
	Wait            time.Duration
}

// Restored is a program that goes on.
type Restored struct {
	Name      string `json:"name"`
	Processes []int  `json:"processes"`
	// Times since the start: when all but the contents was checked; when CRIU had ended; when the contents were here, beside
	// CRIU.
	Check    float64 `json:"check_seconds"`
	Process  float64 `json:"process_seconds"`
	Contents float64 `json:"contents_seconds"`
	Resume   float64 `json:"resume_seconds"`
	Seconds  float64 `json:"seconds"`
}

// Do restores the program. After an error nothing of it is here, unless the error says that it is here and paused.
func (r Restore) Do(ctx context.Context) (restored *Restored, err error) {
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
	if err == nil {
		err = cmp.Or(program.Restores(s.Manifest.Needs.CRIU), fits(s.Manifest))
	}
	if err == nil {
		err = s.VerifyFiles(ctx)
	}
	if err != nil {
		return nil, err
	}
	checked := time.Since(began).Seconds()
	work, err := os.MkdirTemp("", "tms-restore-")
	if err != nil {
		return nil, err
	}
	files := map[uint64]*os.File{}
	defer func() {
		for _, file := range files {
			_ = file.Close()
		}
	}()
	restored = &Restored{Name: s.Name, Check: checked}
	var all errgroup.Group
	all.Go(func() error {
		err := copyContents(ctx, s, files)
		restored.Contents = time.Since(began).Seconds()
		return err
	})
	all.Go(func() error {
		err := criu.Restore{Images: filepath.Join(s.Folder(), images), Work: work, Job: s.Manifest.Job,
			Inherited: streams(s.Manifest)}.Run(program)
		restored.Process = time.Since(began).Seconds()
		if err == nil {
			for _, p := range s.Manifest.Processes {
				restored.Processes = append(restored.Processes, p.PID)
			}
		}
		return err
	})
	err = errors.Join(all.Wait(), ctx.Err())
	if err != nil {
		restored.end()
		return nil, err
	}
	_ = os.RemoveAll(work)
	resuming := time.Now()
	if err = each(s.Manifest, func(p snapshot.Process) error { return give(ctx, p, files) }); err != nil {
		restored.end()
		return nil, err
	}
	err = each(s.Manifest, func(p snapshot.Process) error {
		if err := step("resume"); err != nil {
			return err
		}
		resume := group.Resume{Request: control.SteerRequest{Op: control.Resume, Wait: r.Wait.Seconds()}}
		return resume.Do(ctx, p.PID).Err()
	})
	if err != nil { // it has all that it needs, so it may wait
		return nil, fmt.Errorf("the program is here and paused, and cannot be resumed: %w", err)
	}
	restored.Resume, restored.Seconds = time.Since(resuming).Seconds(), time.Since(began).Seconds()
	return restored, nil
}

// end ends processes that were restored, and cannot be used.
func (r *Restored) end() {
	for _, pid := range r.Processes {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// fits refuses a snapshot that cannot be restored here, before anything is started.
func fits(m *snapshot.Manifest) error {
	if m.Needs.Machine != runtime.GOARCH {
		return fmt.Errorf("the snapshot is of a program for %s, and this machine is %s", m.Needs.Machine, runtime.GOARCH)
	}
	for _, p := range m.Processes {
		if unix.Kill(p.PID, 0) != unix.ESRCH {
			return fmt.Errorf("process %d is here already, and the program needs that number: end the process, and "+
				"have its parent wait for it", p.PID)
		}
	}
	if err := lackedFiles(m.Needs.Mapped); err != nil {
		return err
	}
	return hasGPUs(m.Needs)
}

// streams are this command's own, in place of those that came from outside.
func streams(m *snapshot.Manifest) map[string]*os.File {
	inherited := map[string]*os.File{}
	for name, number := range m.Streams {
		inherited[name] = []*os.File{os.Stdin, os.Stdout, os.Stderr}[number]
	}
	return inherited
}

// copyContents makes a file in memory of each that a process held.
func copyContents(ctx context.Context, s *snapshot.Snapshot, files map[uint64]*os.File) error {
	for _, p := range s.Manifest.Processes {
		for _, held := range p.Contents {
			if err := step("copy"); err != nil {
				return err
			}
			file, err := snapshot.NewMemory(held.Size)
			if err != nil {
				return err
			}
			files[held.Number] = file
			if err := s.Copy(ctx, held.Content, file); err != nil {
				return err
			}
		}
	}
	return nil
}

// each does something with all processes that tms steers, at once.
func each(m *snapshot.Manifest, do func(snapshot.Process) error) error {
	var all errgroup.Group
	for _, p := range m.Processes {
		if p.Steered {
			all.Go(func() error {
				if err := do(p); err != nil {
					return fmt.Errorf("process %d: %w", p.PID, err)
				}
				return nil
			})
		}
	}
	return all.Wait()
}

// give gives a restored process what it held.
func give(ctx context.Context, p snapshot.Process, files map[uint64]*os.File) error {
	if err := step("give"); err != nil {
		return err
	}
	connection, err := client.Dial(p.PID)
	for until := time.Now().Add(listenTime); err != nil && time.Now().Before(until) && ctx.Err() == nil; {
		time.Sleep(2 * time.Millisecond)
		connection, err = client.Dial(p.PID)
	}
	if err != nil {
		return err
	}
	defer connection.Close()
	for _, held := range p.Contents {
		if err := connection.Put(ctx, held.Number, files[held.Number]); err != nil {
			return err
		}
	}
	return nil
}
