"""The interface of the package torch_memory_saver 0.0.10, on top of `tms`.

Programs written for that package run on this one as they are:

    from torch_memory_saver import torch_memory_saver

    with torch_memory_saver.region("weights", enable_cpu_backup=True):
        model = Model().cuda()
    torch_memory_saver.pause("weights")
    torch_memory_saver.resume("weights")

The difference: wherever that package ends the process or fails an assertion, this one raises an
exception of `tms` or a ValueError. New programs are better off with `tms` itself.
"""

from .entrypoint import TorchMemorySaver
from .hooks.mode_preload import configure_subprocess

torch_memory_saver = TorchMemorySaver()
"""The process's one instance."""

__all__ = ["TorchMemorySaver", "configure_subprocess", "torch_memory_saver"]
