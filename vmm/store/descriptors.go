package store

// Descriptors holds descriptors where neither the program nor a child has them. A descriptors.Holder does so for a
// process that closes no descriptors that it has not opened.
type Descriptors interface {
	Keep(descriptor int) (number uint64, err error) // of a copy; never 0. After an error, drop a number that is not 0
	Copy(number uint64) (descriptor int, err error) // for the caller
	Close(descriptor int)                           // of Copy
	Drop(number uint64) error                       // if there is one of that number
}
