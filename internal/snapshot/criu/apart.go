package criu

import "syscall"

// apart keeps Ctrl-C from CRIU, which the terminal sends to all of a group.
var apart = &syscall.SysProcAttr{Setpgid: true}
