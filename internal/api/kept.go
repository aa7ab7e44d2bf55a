package api

import (
	"tms/internal/control"
	"tms/internal/sets"
)

// keptSets is the answer to requests for the keeper's sets.
type keptSets struct {
	Sets []control.KeptSet `json:"sets"`
}

func (s *handler) listSets(*call) (any, error) {
	listed, err := s.Sets.List()
	return keptSets{listed}, err
}

// dropSet answers with what is left.
func (s *handler) dropSet(c *call) (any, error) {
	if err := s.Sets.Drop(c.PathValue("name")); err != nil {
		return nil, err
	}
	return s.listSets(c)
}

type moveSetRequest struct {
	To string `json:"to"`
}

func (s *handler) moveSet(c *call, asked moveSetRequest) (any, error) {
	to, known := map[string]string{"host": control.ToHost, "disk": control.ToDisk, "device": sets.Device}[asked.To]
	if !known {
		return nil, badRequest("to is %q; give host, disk or device", asked.To)
	}
	if err := s.Sets.Move(c.PathValue("name"), to); err != nil {
		return nil, err
	}
	return s.listSets(c)
}
