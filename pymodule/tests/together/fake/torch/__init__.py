"""What tms.distributed uses of PyTorch, if that is not installed: its store, and groups."""

__version__ = "2.11.0"
