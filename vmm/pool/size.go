package pool

// MostBytes is more than any source can give: no processor with CUDA has a larger address space. Options allow no more,
// and sizes below it can be rounded up, doubled and added without overflow.
const MostBytes = 1 << 57
