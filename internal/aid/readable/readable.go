// Package readable writes numbers and text for people, and for terminals.
package readable

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Bytes writes a number of bytes: 512 bytes, 1.50 GiB.
func Bytes(size uint64) string {
	if size < 1<<10 {
		return fmt.Sprintf("%d bytes", size)
	}
	value, unit := float64(size)/(1<<10), 0
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for value >= 1<<10 && unit < len(units)-1 {
		value /= 1 << 10
		unit++
	}
	return fmt.Sprintf("%.2f %s", value, units[unit])
}

// Age returns a time in at most three characters, except for years.
func Age(d time.Duration) string {
	switch d = max(0, d); {
	case d < 100*time.Second:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 100*time.Minute:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 100*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// Short returns a number of bytes in three digits: 512, 1.50 GiB, 15.0 GiB, 150 GiB.
func Short(bytes uint64) string {
	value, unit := float64(bytes), 0
	units := []string{"", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"}
	for math.Round(value) >= 1000 {
		value /= 1 << 10
		unit++
	}
	digits := 0
	if unit > 0 && value < 99.95 {
		digits = 1
		if value < 9.995 {
			digits = 2
		}
	}
	return fmt.Sprintf("%.*f%s", digits, value, units[unit])
}

// Printable returns the text with unprintable characters replaced, so that it does nothing to a terminal.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, text)
}

// JSON adds the escapes that encoding/json leaves out: for unprintable characters beyond the first 32.
func JSON(text []byte) []byte {
	var printable []byte
	for _, r := range string(text) {
		if unicode.IsPrint(r) || r == '\n' {
			printable = utf8.AppendRune(printable, r)
		} else {
			for _, unit := range utf16.AppendRune(nil, r) {
				printable = fmt.Appendf(printable, "\\u%04x", unit)
			}
		}
	}
	return printable
}

// Cut shortens text to a width in characters.
func Cut(text string, width int) string {
	if characters := []rune(text); len(characters) > width {
		return string(characters[:width-1]) + "…"
	}
	return text
}
