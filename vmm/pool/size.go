package pool

// MostBytes is what no source can ever give: no processor with CUDA has a larger address space. Options
// give no more, and below it sizes can be rounded up, doubled and added to one another without overflow.
const MostBytes = 1 << 57
