package cuda

// Order names a stream. No other stream ever has the same order, even after the stream was destroyed, unless it is
// reused.
type Order struct {
	ID      uint64  // cuStreamGetId, or the handle if the driver has no id
	Context Context // of a default stream, which is a different one in each
	Reused  bool    // ID is a handle, which other streams may have: after this one, or in other contexts
}

// defaultStreams are below this: 0, cudaStreamLegacy and cudaStreamPerThread.
const defaultStreams Stream = 3

// OrderOf names a stream. (cuStreamGetId)
func OrderOf(d *Driver, stream Stream) (o Order) {
	id, err := d.StreamGetID(stream)
	if o.ID = id; err == nil && stream < defaultStreams {
		o.Context, err = d.CtxGetCurrent()
	}
	if err != nil {
		o = Order{ID: uint64(stream), Reused: true}
	}
	return o
}

// TakeStreams makes the driver take the device memory that many streams of a context need, which the driver then keeps.
// A caller that needs a stream later gets an error again. (cuStreamCreate; 2 MiB each at the 2nd and at the 6th stream,
// seen on driver 580)
func TakeStreams(d *Driver, context Context, count int) {
	made := make([]Stream, 0, count)
	_ = d.With(context, func() error {
		for range count {
			stream, err := d.StreamCreate()
			if err != nil {
				break
			}
			made = append(made, stream)
		}
		for _, stream := range made {
			d.DropStream(stream)
		}
		return nil
	})
}
