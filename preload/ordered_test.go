package main

import "testing"

func TestStreamOrderedMemory(t *testing.T) {
	each(t, compile(t, "ordered", majors[1]), alone("ahead", "steps", "repeats", "turns",
		"child", "pools", "current", "attributes", "device"),
		"CUDASIM_DEVICES=2", "CUDASIM_MEMORY=1G")
}
