package pool

// MostBytes is more than any source can give: no processor with CUDA has a larger address space. Options allow no more,
// and below it sizes can be rounded up, doubled and added without overflow.
const MostBytes = 1 << 57
