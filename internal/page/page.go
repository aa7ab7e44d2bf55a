// Package page has what the scripts of pages share: internal/report and internal/replay write them.
package page

import (
	_ "embed"
	"strings"
)

//go:embed page.js
var script string

// Fill is a page with its data, each after the name of its place, and with the shared script at /*shared*/.
func Fill(page string, data ...string) string {
	return strings.NewReplacer(append([]string{"/*shared*/", script}, data...)...).Replace(page)
}
