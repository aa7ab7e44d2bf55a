package server

import "time"

// Glance sets how often a server that does not listen yet looks at its clients while another thread works.
func (s *Server) Glance(every time.Duration) { s.looks = every }
