"""How memory becomes pausable: by interposing cudaMalloc, or by an allocator for PyTorch's
pools."""
