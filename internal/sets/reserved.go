package sets

import (
	"tms/internal/control"
	"tms/vmm/cuda"
)

// Reserved host memory: extents go from the keeper to a process, and back.

// take hands out an extent, if the request asks for one. The asker is its owner from now on.
func (k *Keeper) take(from owner, r control.SetRequest) (descriptor int, err error) {
	if r.Bytes == 0 {
		return -1, nil
	}
	if r.Node == nil || len(k.free[*r.Node]) == 0 {
		return -1, cuda.Refuse(cuda.OutOfMemory, "no reserved host memory is free")
	}
	extents := k.free[*r.Node]
	descriptor, k.free[*r.Node] = extents[len(extents)-1], extents[:len(extents)-1]
	k.held--
	k.lent[from]++
	return descriptor, nil
}

// takeBack is for an extent that its new owner has never got.
func (k *Keeper) takeBack(from owner, node, descriptor int) {
	k.returned(from)
	k.give(node, descriptor)
}

// give makes an extent free for all.
func (k *Keeper) give(node, descriptor int) {
	k.free[node] = append(k.free[node], descriptor)
	k.held++
}

// returned counts an extent that a process has no longer.
func (k *Keeper) returned(from owner) {
	if k.lent[from]--; k.lent[from] <= 0 {
		delete(k.lent, from)
	}
}
