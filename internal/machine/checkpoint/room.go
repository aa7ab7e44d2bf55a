package checkpoint

import "tms/vmm/cuda"

// Room is what a look has found free for one restore, under the locks by which processes take memory in turn. Only Look
// gives one, and Restore takes nothing else: so no restore is made without the look or without the locks.
type Room struct{ unlock func() }

// Look takes the locks, and then looks. It returns the errors of both; then nothing is locked.
func Look(lock func() (unlock func(), err error), look func() error) (*Room, error) {
	unlock, err := lock()
	if err != nil {
		return nil, err
	}
	if err = look(); err != nil {
		unlock()
		return nil, err
	}
	return &Room{unlock}, nil
}

// End lets others take memory. It may be called again.
func (r *Room) End() {
	if r != nil && r.unlock != nil {
		r.unlock()
		r.unlock = nil
	}
}

// check refuses a room that no look has given, or that has ended.
func (r *Room) check() error {
	if r == nil || r.unlock == nil {
		return cuda.Refuse(cuda.InvalidValue, "nothing has looked whether there is room for this restore")
	}
	return nil
}
