package main

import "testing"

// What a program asks about memory, or needs it for, while it is paused.
func TestQuestionsWhilePaused(t *testing.T) {
	for _, cudart := range eachMajor() {
		each(t, compileWithDriver(t, "questions", cudart), alone("attributes", "communication", "handles", "lent", "bound",
			"ipc", "beside", "reset"), reaching(t), "TMS_SHAREABLE=ipc")
	}
	program := compileWithDriver(t, "questions", majors[1])
	each(t, program, alone("communication"))
	each(t, program, alone("lent by range"), reaching(t)+" "+shared(t, "dmabuf"))
}
