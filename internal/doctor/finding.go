package doctor

// Severity says how much a finding matters.
type Severity string

// Only an error means that memory cannot be made pausable; a warning means that some of it cannot,
// or that something else will go wrong.
const (
	OK      Severity = "ok"
	Note    Severity = "note"
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Finding is one result: a line that says what was found, and a line that says what to do about it ("": nothing). ID is
// stable, for programs that read the JSON.
type Finding struct {
	Severity Severity `json:"severity"`
	ID       string   `json:"id"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

func (r *Report) add(severity Severity, id, what, do string) {
	r.Findings = append(r.Findings, Finding{severity, id, what, do})
}
