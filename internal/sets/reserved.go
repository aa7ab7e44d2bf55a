package sets

import (
	"errors"

	"tms/internal/aid/descriptors"
	"tms/internal/control"
	"tms/vmm/cuda"
)

// Reserved host memory: extents go from the keeper to a process, and back.

// take hands out an extent, if the request asks for one. It is the asker's once that has it, and else free again.
func (k *Keeper) take(from owner, r control.SetRequest) (descriptor int, settle func(got bool), err error) {
	if r.Bytes == 0 {
		return -1, nil, nil
	}
	if r.Node == nil || len(k.free[*r.Node]) == 0 {
		return -1, nil, cuda.Refuse(cuda.OutOfMemory, "no reserved host memory is free")
	}
	node, last := *r.Node, len(k.free[*r.Node])-1
	number := k.free[node][last]
	if descriptor, err = k.held.Copy(number); err != nil {
		return -1, nil, err
	}
	k.held.Leave(number)
	k.free[node] = k.free[node][:last]
	k.lent[from]++
	return descriptor, func(got bool) {
		if got {
			go k.drop([]uint64{number})
			return
		}
		k.held.Stay(number)
		k.returned(from)
		k.free[node] = append(k.free[node], number)
	}, nil
}

// give makes an extent of a process free for all.
func (k *Keeper) give(from owner, r control.SetRequest, given *int) error {
	if r.Node == nil || *given < 0 {
		return errors.New("a give needs a node, and a descriptor")
	}
	number := descriptors.Number()
	if err := k.held.Put(number, cuda.HostExtent, given); err != nil {
		return err
	}
	k.returned(from)
	k.free[*r.Node] = append(k.free[*r.Node], number)
	return nil
}

// returned counts an extent that a process has no longer.
func (k *Keeper) returned(from owner) {
	if k.lent[from]--; k.lent[from] <= 0 {
		delete(k.lent, from)
	}
}
