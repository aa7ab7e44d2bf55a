package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// withoutRings has the kernel answer ENOSYS to this thread's io_uring_setup, as a kernel without io_uring does, and so
// to the program that it executes next, and to all threads and children of that. CRIU dumps such a filter, and restores
// it. (seccomp)
func withoutRings() error {
	runtime.LockOSThread() // which executes the program
	// The call has this number in all tables of x86-64 and aarch64, those of 32-bit programs too; x32 has a bit more.
	const number, x32, data = 425, 0x40000000, 0 // offsetof(struct seccomp_data, nr)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: data},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: ^uint32(x32)},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: number, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	set := func() error {
		_, _, failed := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
		if failed != 0 {
			return failed
		}
		return nil
	}
	err := set()
	if errors.Is(err, unix.EACCES) { // without CAP_SYS_ADMIN the program must not gain rights by executing another
		if err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err == nil {
			err = set()
		}
	}
	if err != nil {
		return fmt.Errorf("--no-io-uring: the kernel takes no filter of system calls (seccomp): %w", err)
	}
	return nil
}
