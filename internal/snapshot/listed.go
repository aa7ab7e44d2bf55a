package snapshot

// Listed is an entry as the commands and the server write it in JSON.
type Listed struct {
	Directory string `json:"directory"`
	Entry
	Processes []ListedProcess `json:"processes"`
	Needs     Needs           `json:"needs"`
}

// ListedProcess is a process of a snapshot in a list.
type ListedProcess struct {
	PID      int      `json:"pid"`
	Parent   int      `json:"parent,omitempty"`
	Command  []string `json:"command"`
	Contents int64    `json:"contents"` // bytes
}

// Listed returns entries of the directory for JSON.
func (d *Directory) Listed(list []Entry) []Listed {
	entries := []Listed{}
	for _, e := range list {
		entry := Listed{Directory: d.Path(), Entry: e, Processes: []ListedProcess{}, Needs: e.Needs}
		for _, p := range e.Processes {
			entry.Processes = append(entry.Processes, ListedProcess{p.PID, p.Parent, p.Command, p.Bytes()})
		}
		entries = append(entries, entry)
	}
	return entries
}
