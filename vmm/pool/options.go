package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Options are a pool's settings as text, as a command line or a C caller gives them. A kind reads those that it knows,
// and Err then names the rest.
type Options struct {
	values map[string]string
	err    error
}

// ParseOptions reads settings written as k=v, separated by commas outside brackets; an empty text has no settings.
// Errors: ErrOption.
func ParseOptions(text string) (*Options, error) {
	o := &Options{values: map[string]string{}}
	if strings.TrimSpace(text) == "" {
		return o, nil
	}
	for _, setting := range split(text) {
		key, value, found := strings.Cut(strings.TrimSpace(setting), "=")
		if !found || key == "" {
			return nil, fmt.Errorf("%w: %q is not of the form key=value", ErrOption, setting)
		}
		if _, twice := o.values[key]; twice {
			return nil, fmt.Errorf("%w: %q is given twice", ErrOption, key)
		}
		o.values[key] = value
	}
	return o, nil
}

func split(text string) (settings []string) {
	from, open := 0, false
	for i, c := range text {
		switch {
		case c == '[' || c == ']':
			open = c == '['
		case c == ',' && !open:
			settings = append(settings, text[from:i])
			from = i + 1
		}
	}
	return append(settings, text[from:])
}

func (o *Options) take(key string) (string, bool) {
	if o == nil {
		return "", false
	}
	value, found := o.values[key]
	delete(o.values, key)
	return value, found
}

func (o *Options) fail(key, value, wanted string) {
	if o.err == nil {
		o.err = fmt.Errorf("%w: %s=%q: give %s", ErrOption, key, value, wanted)
	}
}

// Bytes takes a size, a number of bytes with an optional suffix KiB, MiB, GiB or TiB; at most MostBytes.
func (o *Options) Bytes(key string, otherwise uint64) uint64 {
	text, found := o.take(key)
	if !found {
		return otherwise
	}
	number, shift := text, 0
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if cut, has := strings.CutSuffix(text, suffix); has {
			number, shift = cut, 10*(i+1)
		}
	}
	value, err := strconv.ParseUint(number, 10, 64)
	switch {
	case err == nil && value <= MostBytes>>shift:
		return value << shift
	case err == nil || errors.Is(err, strconv.ErrRange):
		o.fail(key, text, fmt.Sprintf("at most %dTiB, more than any device has", MostBytes>>40))
	default:
		o.fail(key, text, "a number of bytes, with KiB, MiB, GiB or TiB behind it if you like")
	}
	return otherwise
}

// Int takes a whole number that is not negative.
func (o *Options) Int(key string, otherwise int) int {
	text, found := o.take(key)
	if !found {
		return otherwise
	}
	value, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		o.fail(key, text, "a whole number")
		return otherwise
	}
	return int(value)
}

// Fraction takes a number from 0 to 1.
func (o *Options) Fraction(key string, otherwise float64) float64 {
	text, found := o.take(key)
	if !found {
		return otherwise
	}
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || !(value >= 0 && value <= 1) {
		o.fail(key, text, "a number from 0 to 1")
		return otherwise
	}
	return value
}

// Bool takes 1/0, true/false or yes/no.
func (o *Options) Bool(key string, otherwise bool) bool {
	text, found := o.take(key)
	switch strings.ToLower(text) {
	case "1", "true", "yes":
		return true
	case "0", "false", "no":
		return false
	}
	if found {
		o.fail(key, text, "true or false")
	}
	return otherwise
}

// Text takes any text.
func (o *Options) Text(key, otherwise string) string {
	if text, found := o.take(key); found {
		return text
	}
	return otherwise
}

// Err returns the first setting that was malformed or, once all were read, the first that nobody took. Errors:
// ErrOption.
func (o *Options) Err() error {
	if o == nil {
		return nil
	}
	if o.err == nil && len(o.values) > 0 {
		unknown := slices.Sorted(maps.Keys(o.values))
		return fmt.Errorf("%w: this kind has no option %s", ErrOption, strings.Join(unknown, ", "))
	}
	return o.err
}
