package caching

// graphPool is a private pool of graphs.
type graphPool struct {
	segments     int
	small, large blockPool
}

func newGraphPool() (*graphPool, error) {
	g := &graphPool{}
	g.small, g.large = blockPool{small: true, graph: g}, blockPool{graph: g}
	return g, nil
}

// Empty reports whether the pool has no segments.
func (g *graphPool) Empty() bool { return g.segments == 0 }
