package doctor

import "fmt"

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

// Finding is one result: a line of what is so, and a line of what to do about it ("": nothing). ID is stable, for
// programs that read the JSON.
type Finding struct {
	Severity Severity `json:"severity"`
	ID       string   `json:"id"`
	What     string   `json:"what"`
	Do       string   `json:"do"`
}

func (r *Report) add(severity Severity, id, what, do string) {
	r.Findings = append(r.Findings, Finding{severity, id, what, do})
}

// size writes a size for people.
func size(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d bytes", n)
	}
	value, unit := float64(n)/(1<<10), 0
	for value >= 1024 && unit < len(units)-1 {
		value /= 1024
		unit++
	}
	text := fmt.Sprintf("%.1f", value)
	if value == float64(uint64(value)) {
		text = fmt.Sprintf("%.0f", value)
	}
	return text + " " + units[unit:unit+1] + "iB"
}
