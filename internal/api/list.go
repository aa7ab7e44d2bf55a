package api

import (
	"net/http"
	"strconv"
	"time"

	"tms/internal/control"
	"tms/internal/fleet"
	"tms/internal/machine/nvml"
)

// listTime is how long a process may take to say what it has.
const listTime = time.Second

func (s *handler) version(*call) (any, error) {
	return struct {
		Version  string `json:"version"`
		Protocol int    `json:"protocol"`
	}{s.Version, control.Version}, nil
}

// list answers as tms ps --json does, with bytes as tms ps --bytes does.
func list(c *call) (any, error) {
	query := c.URL.Query()
	found := fleet.OfJob(query.Get("job"), fleet.Ask(listTime))
	if query.Get("bytes") == "true" {
		measure(found)
	} else if len(found) > 0 {
		fleet.Number(found, fleet.Shown())
	}
	return struct {
		Processes []fleet.Process `json:"processes"`
	}{found}, nil
}

func measure(found []fleet.Process) {
	var shown []nvml.Device
	if len(found) > 0 {
		shown, _ = fleet.GPUs() // without NVML there is no figure for everything
	}
	fleet.Measure(found, shown)
}

// one answers for a process by its number.
func one(c *call) (any, error) {
	pid, err := strconv.Atoi(c.PathValue("pid"))
	if err != nil || pid <= 0 {
		return nil, badRequest("%q is no number of a process", c.PathValue("pid"))
	}
	found := fleet.Ask(listTime, pid)
	if found[0].Absent {
		return nil, &refusal{http.StatusNotFound, found[0].Error}
	}
	measure(found)
	return found[0], nil
}
