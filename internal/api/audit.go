package api

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"

	"tms/internal/aid/readable"
)

func newAudit(to io.Writer) *slog.Logger { return slog.New(slog.NewJSONHandler(printable{to}, nil)) }

// did is what a change has done to a process, in the audit.
type did struct {
	PID   int    `json:"pid"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// begins writes a line before a change is made: who asks for what. If the server is killed, only this line is left.
func (s *handler) begins(c *call) {
	c.change = s.changes.Add(1)
	s.audit.Info("begins", c.about()...)
}

// about says who asked what.
func (c *call) about() []any {
	about := []any{"change", c.change, "who", c.who.from, "method", c.Method, "path", c.URL.Path}
	if json.Valid(c.body) {
		about = append(about, "request", json.RawMessage(c.body))
	}
	return about
}

// record writes the line of a change that has ended: who asked what, and the result for each process.
func (s *handler) record(c *call, answer any, err error) {
	about := c.about()
	result := "done"
	if r, ok := answer.(results); ok && r.status() != http.StatusOK {
		result = "failed"
	}
	if o, ok := answer.(*outcomes); ok {
		var each []did
		for _, one := range o.Outcomes {
			each = append(each, did{one.PID, one.OK, one.Error})
		}
		about = append(about, "processes", each)
	}
	if err != nil {
		result = "refused"
		about = append(about, "error", err.Error())
	}
	about = append(about, "result", result)
	s.audit.Info("change", about...)
}

// printable writes lines of JSON so that they do nothing to a terminal.
type printable struct{ io.Writer }

func (p printable) Write(line []byte) (int, error) {
	if _, err := p.Writer.Write(readable.JSON(line)); err != nil {
		return 0, err
	}
	return len(line), nil
}
