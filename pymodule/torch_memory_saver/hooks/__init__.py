"""How memory becomes pausable: by interposing cudaMalloc, or by an allocator of PyTorch's pools."""
