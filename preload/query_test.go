package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// What a program asks about memory, or needs it for, while it is paused.
func TestQuestionsWhilePaused(t *testing.T) {
	for _, cudart := range eachMajor() {
		each(t, compileWithDriver(t, "questions", cudart), alone("attributes", "communication", "handles", "lent", "bound",
			"ipc", "beside", "reset"), reaching(t), "TMS_SHAREABLE=ipc")
	}
	program := compileWithDriver(t, "questions", majors[1])
	each(t, program, alone("communication"))
	each(t, program, alone("lent by range"), reaching(t)+" "+shared(t, "dmabuf"))
	for call, preloaded := range map[string][]string{"a CUDA call": nil, "cuLaunchHostFunc": {reaching(t)}} {
		o := run(t, program, []string{"refused"}, preloaded...).succeeded(t)
		require.Equal(t, "paused\ntms: "+call+" was refused (1) while tag \"t\" is paused: resume memory before calls "+
			"that name its addresses (said once)\n", o.stderr)
	}
}
