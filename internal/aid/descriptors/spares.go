package descriptors

import (
	"sync"

	"golang.org/x/sys/unix"
)

// spares are numbers of the process's own table. Contents can then come back even if the program has used up all other
// numbers: they need a connection, the descriptor that comes, and one for the driver. All spares name one empty file,
// so that a file which the program has opened under the same number is not taken for a spare. One spare is never given
// up: with it, each number that was used becomes a spare again without being free in between.
var spares struct {
	sync.Mutex
	numbers [spareCount]int // 0 where a spare is missing
	file    File
}

const spareCount = 6

// FillSpares makes the spare numbers that are missing, as far as there is room. (memfd_create, fcntl)
func FillSpares() {
	spares.Lock()
	defer spares.Unlock()
	for i := range spares.numbers {
		if isSpare(spares.numbers[i]) {
			continue
		}
		spares.numbers[i] = 0
		from := anySpare()
		if from == 0 {
			var err error
			if from, err = unix.MemfdCreate("tms-spare", unix.MFD_CLOEXEC); err != nil {
				return
			}
			if spares.file, err = FileOf(from); err != nil {
				_ = unix.Close(from)
				return
			}
			if from > 0 { // else it is the program's standard input
				spares.numbers[i] = from
				continue
			}
		}
		number, err := unix.FcntlInt(uintptr(from), unix.F_DUPFD_CLOEXEC, 1)
		if from == 0 {
			_ = unix.Close(from)
		}
		if err != nil {
			return
		}
		spares.numbers[i] = number
	}
}

// isSpare reports whether a number still names the file. The caller holds the lock, as does that of anySpare.
func isSpare(number int) bool { return number > 0 && spares.file.Is(number) }

// anySpare returns a spare number, or 0 if there is none.
func anySpare() int {
	for _, number := range spares.numbers {
		if isSpare(number) {
			return number
		}
	}
	return 0
}

// UseSpares makes up to count numbers free, but never the last, and reports whether it freed any.
func UseSpares(count int) (some bool) {
	spares.Lock()
	defer spares.Unlock()
	last := anySpare()
	for i, number := range spares.numbers {
		if count > 0 && number != last && isSpare(number) {
			spares.numbers[i] = 0
			some = unix.Close(number) == nil || some
			count--
		}
	}
	return some
}

// DropSpares makes all spare numbers free.
func DropSpares() {
	spares.Lock()
	defer spares.Unlock()
	for i, number := range spares.numbers {
		if isSpare(number) {
			_ = unix.Close(number)
		}
		spares.numbers[i] = 0
	}
}

// CloseToSpare closes a descriptor of the process's table, whose number becomes a spare if one is missing, and reports
// whether it has. (dup3)
func CloseToSpare(descriptor int) bool {
	spares.Lock()
	defer spares.Unlock()
	if from := anySpare(); from > 0 && descriptor > 0 {
		for i, number := range spares.numbers {
			if !isSpare(number) && unix.Dup3(from, descriptor, unix.O_CLOEXEC) == nil {
				spares.numbers[i] = descriptor
				return true
			}
		}
	}
	_ = unix.Close(descriptor)
	return false
}
