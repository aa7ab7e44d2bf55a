// Package kinds makes a pool of any kind by its name.
package kinds

import (
	"fmt"
	"strings"

	"tms/vmm/pool"
	"tms/vmm/pool/bfc"
	"tms/vmm/pool/buddy"
	"tms/vmm/pool/caching"
	"tms/vmm/pool/freelist"
	"tms/vmm/pool/naive"
	"tms/vmm/pool/paddle"
	"tms/vmm/pool/slab"
)

var all = []struct {
	name string
	make func(pool.Source, *pool.Options) (pool.Pool, error)
}{
	{"naive", naive.New},
	{"freelist", freelist.New},
	{"buddy", buddy.New},
	{"slab", slab.New},
	{"caching", caching.New},
	{"bfc", bfc.New},
	{"paddle", paddle.New},
}

// New makes an empty pool of a kind over a source. nil options stand for the defaults, which New in the kind's package
// documents. Errors: pool.ErrOption, also for an unknown kind.
func New(kind string, source pool.Source, options *pool.Options) (pool.Pool, error) {
	for _, k := range all {
		if k.name == kind {
			return k.make(source, options)
		}
	}
	return nil, fmt.Errorf("%w: no kind of pool is named %q; there are %s",
		pool.ErrOption, kind, strings.Join(Names(), ", "))
}

func Names() []string {
	var names []string
	for _, k := range all {
		names = append(names, k.name)
	}
	return names
}
