package api

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/user"
	"strconv"
	"strings"

	"tms/internal/aid/readable"
	"tms/internal/control"
)

// leastToken is how many characters a token has at least.
const leastToken = 16

// Tokens are the bearer tokens of callers, as hashes, by the callers' names.
type Tokens map[string][sha256.Size]byte

// ReadTokens reads tokens from a file, which other users cannot read.
func ReadTokens(path string) (Tokens, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	about, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if about.Mode().Perm()&0o027 != 0 { // Kubernetes lets the group of a pod read its secrets
		return nil, fmt.Errorf("%s can be read or changed by others (mode %#o); chmod 600 it", path, about.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(file, maxBody))
	if err != nil {
		return nil, err
	}
	tokens, err := ParseTokens(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return tokens, nil
}

// ParseTokens reads tokens, one a line: a token, or the name of its caller and the token. The error has no token.
func ParseTokens(text string) (Tokens, error) {
	tokens := Tokens{}
	for number, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		name, token := "token", fields[len(fields)-1]
		if len(fields) == 2 {
			name = fields[0]
		}
		_, twice := tokens[name]
		switch {
		case len(fields) > 2:
			return nil, fmt.Errorf("line %d has more than a name and a token", number+1)
		case twice:
			return nil, fmt.Errorf("line %d has the name %q again: give each token a name of its own", number+1, name)
		case len(name) > control.MaxName || readable.Printable(name) != name:
			return nil, fmt.Errorf("the name in line %d is none: give at most %d letters", number+1, control.MaxName)
		case len(token) < leastToken:
			return nil, fmt.Errorf("the token in line %d has less than %d characters: openssl rand -hex 32 makes one",
				number+1, leastToken)
		}
		tokens[name] = sha256.Sum256([]byte(token))
	}
	if len(tokens) == 0 {
		return nil, errors.New("there is no token: openssl rand -hex 32 makes one")
	}
	return tokens, nil
}

// name returns whose a token is. It takes as long for every token.
func (t Tokens) name(token string) (name string, known bool) {
	given := sha256.Sum256([]byte(token))
	for each, hash := range t {
		if subtle.ConstantTimeCompare(given[:], hash[:]) == 1 {
			name, known = each, true
		}
	}
	return name, known
}

// caller is who asks.
type caller struct {
	user string // for people: a user of this machine, or the name of a token
	from string // for the audit: also a process of this machine, or an address
}

// caller lets in who may ask. Errors: a refusal.
func (s *handler) caller(request *http.Request) (caller, error) {
	from := request.RemoteAddr // of a peer, if there are no tokens
	if s.Tokens == nil && from == string(elsewhere) {
		return caller{}, &refusal{http.StatusForbidden, "this is another PID namespace (another container): run tms serve " +
			"where the caller runs, or have the caller see this server's processes"}
	}
	if s.Tokens == nil {
		return caller{userOf(from), from}, nil
	}
	scheme, token, _ := strings.Cut(request.Header.Get("Authorization"), " ")
	if name, known := s.Tokens.name(strings.TrimSpace(token)); known && strings.EqualFold(scheme, "bearer") {
		return caller{name, name + " at " + from}, nil
	}
	if !s.guesses.Allow() {
		return caller{}, &refusal{http.StatusTooManyRequests, "there are too many requests without a token that is known"}
	}
	s.audit.Warn("refused: no known token", "who", from)
	return caller{}, &refusal{http.StatusUnauthorized, "give a token that is known: Authorization: Bearer TOKEN"}
}

// userOf names the user of a peer, or returns "" if the system has no name.
func userOf(from string) string {
	var uid, pid int
	if _, err := fmt.Sscanf(from, peerFormat, &uid, &pid); err != nil {
		return ""
	}
	found, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ""
	}
	return found.Username
}

func (s *handler) baseContext(net.Listener) context.Context { return s.Context }
