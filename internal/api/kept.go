package api

import (
	"net/http"
	"slices"

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

type advanceRequest struct {
	Back    bool     `json:"back"`
	Timeout *float64 `json:"timeout"`
}

// advanced is the answer to an advance.
type advanced struct {
	Followers []sets.Follower `json:"followers"`
}

func (a *advanced) status() int {
	if slices.ContainsFunc(a.Followers, func(one sets.Follower) bool { return one.Error != "" }) {
		return http.StatusConflict
	}
	return http.StatusOK
}

func (s *handler) advanceSet(c *call, asked advanceRequest) (any, error) {
	within := float64(control.DefaultTimeout)
	if asked.Timeout != nil {
		within = *asked.Timeout
	}
	if err := times(map[string]float64{"timeout": within}); err != nil {
		return nil, err
	}
	followers, err := s.Sets.Advance(c.Context(), c.PathValue("name"), asked.Back, control.Seconds(within))
	if err == nil && len(followers) == 0 {
		return nil, &refusal{http.StatusNotFound, "no process follows this set and says where its steps end"}
	}
	return &advanced{followers}, err
}
