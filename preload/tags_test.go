package main

import (
	"strconv"
	"testing"
)

// A tag for every step of a long run.
func TestManyTags(t *testing.T) {
	o := run(t, compile(t, "tags", majors[1]), []string{"many", strconv.Itoa(often(20000, 6000))}).succeeded(t)
	t.Log(o.stdout)
}

func TestAddressesAreLimited(t *testing.T) {
	run(t, compile(t, "tags", majors[1]), []string{"limited"}).succeeded(t)
}
