package report

import (
	"cmp"
	"slices"
)

// columns are spans of time, each with one value on a page: their boundaries, from the first to the last moment. They
// are narrow where much happens: if there are few enough changes, each begins a column.
type columns []int64

// newColumns makes at most that many columns. It spaces half of the boundaries evenly in time and the others evenly
// among the changes, and always adds those where operations begin and end.
func newColumns(processes []*process, most int) columns {
	from, to := span(processes)
	bounds := columns{from, to}
	var changes []int64
	for _, p := range processes {
		for _, s := range p.steps {
			changes = append(changes, s.at)
		}
	}
	slices.Sort(changes)
	changes = slices.Compact(changes)
	operations := 0
	for _, p := range processes {
		for _, o := range p.operations {
			if operations += 2; operations <= most/4 {
				bounds = append(bounds, o.from, o.from+int64(o.took))
			}
		}
	}
	if len(changes)+len(bounds) <= most {
		bounds = append(bounds, changes...)
	} else {
		half := (most - len(bounds)) / 2
		for i := range half {
			bounds = append(bounds, from+int64(float64(to-from)*float64(i)/float64(half)), changes[i*len(changes)/half])
		}
	}
	slices.Sort(bounds)
	bounds = slices.Compact(bounds)
	if len(bounds) == 1 {
		bounds = append(bounds, bounds[0]+1)
	}
	return bounds
}

// span returns the times of the first and the last record of all.
func span(processes []*process) (from, to int64) {
	from, to = processes[0].from, processes[0].to
	for _, p := range processes {
		from, to = min(from, p.from), max(to, p.to)
	}
	return from, to
}

func (c columns) count() int { return len(c) - 1 }

// envelope has for each column the values of the series when their sum was largest, and the smallest sum.
type envelope struct {
	atMost [][]uint64 // by series
	least  []uint64
}

// envelope follows one metric of changes in their order.
func (c columns) envelope(steps []step, count, metric int) envelope {
	e := envelope{make([][]uint64, count), make([]uint64, c.count())}
	for i := range e.atMost {
		e.atMost[i] = make([]uint64, c.count())
	}
	now := make([]uint64, count)
	sum := uint64(0)
	column := 0
	most := uint64(0)
	rise := func() {
		most = sum
		for i, value := range now {
			e.atMost[i][column] = value
		}
	}
	enter := func() { // a column begins with the current values
		e.least[column] = sum
		rise()
	}
	enter()
	for _, s := range steps {
		if s.metric != metric {
			continue
		}
		moved := false
		for column+1 < c.count() && s.at >= c[column+1] {
			column++
			enter()
			moved = true
		}
		sum += s.value - now[s.series]
		now[s.series] = s.value
		if moved && s.at == c[column] { // the old values ended as the column began
			enter()
			continue
		}
		e.least[column] = min(e.least[column], sum)
		if sum >= most {
			rise()
		}
	}
	for column+1 < c.count() {
		column++
		enter()
	}
	return e
}

// together returns the changes of all processes, as if each were a series.
func together(processes []*process) []step {
	var all []step
	for n, p := range processes {
		for _, s := range p.sums() {
			s.series = n
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(x, y step) int { return cmp.Compare(x.at, y.at) })
	return all
}

// exact reports whether no column has more than one change, so that the page shows them all.
func (c columns) exact(processes []*process) bool {
	for _, p := range processes {
		for _, s := range p.steps {
			if _, found := slices.BinarySearch(c, s.at); !found {
				return false
			}
		}
	}
	return true
}
