package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"tms/internal/aid/readable"
	"tms/internal/control"
	"tms/internal/control/client"
	"tms/internal/fleet"
	"tms/internal/group"
)

// processes says which processes a request is for, in one of these ways.
type processes struct {
	PIDs []int  `json:"pids"`
	Job  string `json:"job"` // the processes of one launch
	All  bool   `json:"all"` // all of this user that listen
}

// find returns the processes that listen, or that are named.
func (p *processes) find() ([]int, error) {
	ways := 0
	for _, given := range []bool{len(p.PIDs) > 0, p.Job != "", p.All} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return nil, badRequest("give the processes by pids, job or all, in one of these ways")
	}
	for _, pid := range p.PIDs {
		if pid <= 0 {
			return nil, badRequest("%d is no number of a process", pid)
		}
	}
	pids, err := fleet.Distinct(p.PIDs), error(nil)
	switch {
	case p.All:
		pids, err = client.List()
	case p.Job != "":
		pids, err = group.OfJob(p.Job)
	}
	if err == nil && len(pids) == 0 {
		ofWhom := "this user"
		if p.Job != "" {
			ofWhom = "job " + p.Job
		}
		err = fmt.Errorf("no process of %s listens", ofWhom)
	}
	if err != nil {
		return nil, &refusal{http.StatusNotFound, err.Error()}
	}
	return pids, nil
}

// times refuses times that no process takes.
func times(named map[string]float64) error {
	for name, seconds := range named {
		if !(seconds >= 0 && seconds <= control.MaxSeconds) {
			return badRequest("%s is %g; it is seconds, from 0 to %d", name, seconds, control.MaxSeconds)
		}
	}
	return nil
}

// seconds returns a time that was given, or its default.
func seconds(given *float64, otherwise float64) float64 {
	if given == nil {
		return otherwise
	}
	return *given
}

// outcomes is the answer to a change, in the order of the processes.
type outcomes struct {
	Outcomes []group.Outcome `json:"outcomes"`
}

// status is that of HTTP for what a command says by its exit status.
func (o *outcomes) status() int {
	switch group.Summary(o.Outcomes) {
	case group.AllDone:
		return http.StatusOK
	case group.SomeLost:
		return http.StatusInternalServerError
	case group.SomeUnreachable:
		return http.StatusNotFound
	}
	return http.StatusConflict
}

// each does something with processes at once, each for itself.
func each(pids []int, do func(pid int) group.Outcome) *outcomes {
	done := &outcomes{make([]group.Outcome, len(pids))}
	var all sync.WaitGroup
	for i, pid := range pids {
		all.Go(func() { done.Outcomes[i] = do(pid) })
	}
	all.Wait()
	return done
}

// plans is the answer to a dry run.
type plans struct {
	Plans []group.Plan `json:"plans"`
}

func (p *plans) add(ctx context.Context, planning *group.Planning, op string, pids ...int) *plans {
	for _, pid := range pids {
		plan, _ := planning.Of(ctx, pid, op)
		p.Plans = append(p.Plans, plan)
	}
	return p
}

type pauseRequest struct {
	processes
	Tag        *string  `json:"tag"`
	Timeout    *float64 `json:"timeout"`
	Force      bool     `json:"force"`
	Everything bool     `json:"everything"`
	Discard    bool     `json:"discard"`
	To         string   `json:"to"`
	DryRun     bool     `json:"dry_run"`
}

func pause(c *call, asked pauseRequest) (any, error) {
	request := control.SteerRequest{Op: control.Pause, Tag: asked.Tag, Force: asked.Force,
		Everything: asked.Everything, Discard: asked.Discard,
		Timeout: new(seconds(asked.Timeout, control.DefaultTimeout))}
	switch {
	case asked.To != "" && asked.To != control.ToDisk && asked.To != control.ToHost:
		return nil, badRequest("to is %q; give disk or host", asked.To)
	case asked.Discard && asked.To != "":
		return nil, badRequest("discard leaves nothing to move: leave to out")
	case asked.Everything && asked.Tag != nil:
		return nil, badRequest("everything pauses a whole process: leave tag out")
	case asked.DryRun && (asked.Everything || asked.To != "" || asked.Discard):
		return nil, badRequest("dry_run foretells a plain pause alone: leave everything, to and discard out")
	case asked.Job != "" && asked.To != "":
		return nil, badRequest("a job cannot move contents: leave to out, then pause the processes by pids with to")
	}
	pids, err := checked(asked.processes, asked.Tag, map[string]float64{"timeout": *request.Timeout})
	if err != nil {
		return nil, err
	}
	if asked.DryRun {
		return new(plans).add(c.Context(), group.NewPlanning(asked.Tag, asked.Force), control.Pause, pids...), nil
	}
	if asked.To == control.ToDisk {
		request.To = asked.To
	}
	return c.pause(asked.processes, pids, request, group.Keep{}, asked.To), nil
}

// pause pauses processes, each for itself or the whole job.
func (c *call) pause(of processes, pids []int, request control.SteerRequest, keep group.Keep, to string) *outcomes {
	keep.User = c.who.user
	if of.Job != "" {
		job := group.Together(pids...)
		job.Keep = keep
		return &outcomes{job.Outcomes(job.Pause(c.Context(), request, ""))}
	}
	return each(pids, func(pid int) group.Outcome {
		one := group.Alone(pid)
		one.Keep = keep
		return one.Outcomes(one.Pause(c.Context(), request, to))[0]
	})
}

type lendRequest struct {
	processes
	For     float64  `json:"for"`
	To      string   `json:"to"` // who uses the memory
	Tag     *string  `json:"tag"`
	Timeout *float64 `json:"timeout"`
	Force   bool     `json:"force"`
}

func lend(c *call, asked lendRequest) (any, error) {
	request := control.SteerRequest{Op: control.Pause, Tag: asked.Tag, Force: asked.Force,
		Timeout: new(seconds(asked.Timeout, control.DefaultTimeout))}
	switch {
	case asked.For < 1:
		return nil, badRequest("for is %g; it is how many seconds the memory is lent, at least 1", asked.For)
	case len(asked.To) > control.MaxName || readable.Printable(asked.To) != asked.To:
		return nil, badRequest("to is a name of at most %d bytes", control.MaxName)
	}
	pids, err := checked(asked.processes, asked.Tag, map[string]float64{"for": asked.For, "timeout": *request.Timeout})
	if err != nil {
		return nil, err
	}
	return c.pause(asked.processes, pids, request, group.Keep{For: control.Seconds(asked.For), To: asked.To}, ""), nil
}

// checked returns the processes, and refuses a request for a tag without a name or with a time that is none.
func checked(of processes, tag *string, named map[string]float64) ([]int, error) {
	if tag != nil && *tag == "" {
		return nil, badRequest("the tag is empty: leave it out for all")
	}
	if err := times(named); err != nil {
		return nil, err
	}
	return of.find()
}

type resumeRequest struct {
	processes
	Tag    *string `json:"tag"`
	Wait   float64 `json:"wait"`
	DryRun bool    `json:"dry_run"`
}

func resume(c *call, asked resumeRequest) (any, error) {
	pids, err := checked(asked.processes, asked.Tag, map[string]float64{"wait": asked.Wait})
	if err != nil {
		return nil, err
	}
	if asked.DryRun {
		return new(plans).add(c.Context(), group.NewPlanning(asked.Tag, false), control.Resume, pids...), nil
	}
	r := group.Resume{Request: control.SteerRequest{Op: control.Resume, Tag: asked.Tag, Wait: asked.Wait}}
	return each(pids, func(pid int) group.Outcome { return r.Do(c.Context(), pid) }), nil
}

type swapRequest struct {
	Out     int      `json:"out"`
	In      int      `json:"in"`
	Tag     *string  `json:"tag"`
	Timeout *float64 `json:"timeout"`
	Wait    float64  `json:"wait"`
	Force   bool     `json:"force"`
	DryRun  bool     `json:"dry_run"`
}

func swap(c *call, asked swapRequest) (any, error) {
	if asked.Out == asked.In {
		return nil, badRequest("give two different processes: out is to be paused, in is to be resumed")
	}
	timeout := seconds(asked.Timeout, control.DefaultTimeout)
	_, err := checked(processes{PIDs: []int{asked.Out, asked.In}}, asked.Tag,
		map[string]float64{"timeout": timeout, "wait": asked.Wait})
	if err != nil {
		return nil, err
	}
	if asked.DryRun {
		planning := group.NewPlanning(asked.Tag, asked.Force)
		return new(plans).add(c.Context(), planning, control.Pause, asked.Out).
			add(c.Context(), planning, control.Resume, asked.In), nil
	}
	request := control.SteerRequest{Op: control.Pause, Tag: asked.Tag, Force: asked.Force, Timeout: &timeout}
	keep := group.Keep{User: c.who.user}
	return &outcomes{group.Swap(c.Context(), asked.Out, asked.In, request, keep, control.Seconds(asked.Wait))}, nil
}

type moveRequest struct {
	processes
	To      string            `json:"to"`
	From    string            `json:"from"`
	Map     map[string]string `json:"map"` // each GPU that changes, and where it goes
	Timeout *float64          `json:"timeout"`
	Force   bool              `json:"force"`
	DryRun  bool              `json:"dry_run"`
}

func move(c *call, asked moveRequest) (any, error) {
	timeout := seconds(asked.Timeout, control.DefaultTimeout)
	m := group.NewMove(control.Seconds(timeout), asked.Force)
	for old, new := range asked.Map {
		if old == "" || new == "" {
			return nil, badRequest("map has each GPU and where it goes, by number or UUID")
		}
		m.Pairs = append(m.Pairs, old+"="+new)
	}
	slices.Sort(m.Pairs)
	switch {
	case (asked.To == "") == (len(m.Pairs) == 0):
		return nil, badRequest("give either to, or map with the GPUs that change")
	case asked.From != "" && asked.To == "":
		return nil, badRequest("from says what goes to to: leave it out of a map")
	case asked.All && asked.From == "" && len(m.Pairs) == 0:
		return nil, badRequest("all takes from or map: which GPU is to be emptied?")
	}
	pids, err := checked(asked.processes, nil, map[string]float64{"timeout": timeout})
	if err != nil {
		return nil, err
	}
	m.PIDs, m.Job, m.All, m.From, m.To = pids, asked.Job != "", asked.All, asked.From, asked.To
	if asked.DryRun {
		planning := group.NewPlanning(nil, asked.Force)
		planning.Before = m.Begin
		return new(plans).add(c.Context(), planning, control.Pause, pids...), nil
	}
	return each(pids, func(pid int) group.Outcome { return m.Do(c.Context(), pid) }), nil
}
