package pool

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// MostBytes is more than any source can give: no processor with CUDA has a larger address space. Options allow no more,
// and sizes below it can be rounded up, doubled and added without overflow.
const MostBytes = 1 << 57

// Options are a pool's settings as text. A kind reads those that it knows, and Err then names the rest.
type Options struct {
	values map[string]string
	err    error
}

// ParseOptions reads settings k=v, separated by commas outside brackets; an empty text has none. Errors: ErrOption.
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

// take takes a setting and reads it with parse, which returns what to give instead of a malformed one.
func take[V any](o *Options, key string, otherwise V, parse func(text string) (value V, wanted string)) V {
	if o == nil {
		return otherwise
	}
	text, found := o.values[key]
	if !found {
		return otherwise
	}
	delete(o.values, key)
	value, wanted := parse(text)
	if wanted == "" {
		return value
	}
	if o.err == nil {
		o.err = fmt.Errorf("%w: %s=%q: give %s", ErrOption, key, text, wanted)
	}
	return otherwise
}

// Bytes takes a size, a number of bytes with an optional suffix KiB, MiB, GiB or TiB; at most MostBytes.
func (o *Options) Bytes(key string, otherwise uint64) uint64 {
	return take(o, key, otherwise, func(text string) (uint64, string) {
		number, shift := text, 0
		for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
			if cut, has := strings.CutSuffix(text, suffix); has {
				number, shift = cut, 10*(i+1)
			}
		}
		value, err := strconv.ParseUint(number, 10, 64)
		switch {
		case err == nil && value <= MostBytes>>shift:
			return value << shift, ""
		case err == nil || errors.Is(err, strconv.ErrRange):
			return 0, fmt.Sprintf("at most %dTiB, more than any device has", MostBytes>>40)
		}
		return 0, "a number of bytes, with KiB, MiB, GiB or TiB behind it if you like"
	})
}

// Int takes a whole number that is not negative.
func (o *Options) Int(key string, otherwise int) int {
	return take(o, key, otherwise, func(text string) (int, string) {
		value, err := strconv.ParseUint(text, 10, 31)
		if err != nil {
			return 0, "a whole number"
		}
		return int(value), ""
	})
}

// Fraction takes a number from 0 to 1.
func (o *Options) Fraction(key string, otherwise float64) float64 {
	return take(o, key, otherwise, func(text string) (float64, string) {
		value, err := strconv.ParseFloat(text, 64)
		if err != nil || !(value >= 0 && value <= 1) {
			return 0, "a number from 0 to 1"
		}
		return value, ""
	})
}

// Bool takes 1/0, true/false or yes/no.
func (o *Options) Bool(key string, otherwise bool) bool {
	return take(o, key, otherwise, func(text string) (bool, string) {
		switch strings.ToLower(text) {
		case "1", "true", "yes":
			return true, ""
		case "0", "false", "no":
			return false, ""
		}
		return false, "true or false"
	})
}

// Text takes any text.
func (o *Options) Text(key, otherwise string) string {
	return take(o, key, otherwise, func(text string) (string, string) { return text, "" })
}

// Err returns an ErrOption for the first setting that was malformed or, once all options were read, for the settings
// that none of them took.
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
