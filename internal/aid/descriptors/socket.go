package descriptors

import "golang.org/x/sys/unix"

// Send sends bytes through a socket, and with the first of them a copy of a descriptor, unless that is -1. It returns
// how many bytes the kernel has taken. (sendmsg, SCM_RIGHTS)
func Send(socket int, bytes []byte, descriptor, flags int) (int, error) {
	var rights []byte
	if descriptor >= 0 {
		rights = unix.UnixRights(descriptor)
	}
	return unix.SendmsgN(socket, bytes, rights, nil, unix.MSG_NOSIGNAL|flags)
}

// Receive reads what has come through a socket into a buffer. The descriptor that came with it takes the place of the
// one in passed, which is closed. A table without room for a descriptor gets the bytes alone. (recvmsg)
func Receive(socket int, buffer []byte, passed *int) (int, error) {
	rights := make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := unix.Recvmsg(socket, buffer, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return n, err
	}
	if came := only(rights[:m]); came >= 0 {
		_ = unix.Close(*passed) // -1: there was none
		*passed = came
	}
	return n, nil
}

// only returns the descriptor in a control message, and closes others beside it. It returns -1 if there is none.
func only(rights []byte) int {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(messages) == 0 {
		return -1
	}
	came, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(came) == 0 {
		return -1
	}
	for _, more := range came[1:] {
		_ = unix.Close(more)
	}
	return came[0]
}
