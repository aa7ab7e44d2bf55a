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

import contextlib

from .entrypoint import TorchMemorySaver, register_hook_mode
from .hooks import mode_preload as _mode_preload

torch_memory_saver = TorchMemorySaver()
"""The process's one instance."""


def configure_subprocess() -> contextlib.AbstractContextManager[None]:
    """Starts the child processes of the body with the library, by LD_PRELOAD in os.environ.

    As `tms.configure_subprocess`; it does nothing for a hook_mode that needs no preload.
    """
    if torch_memory_saver._uses_preload():
        return _mode_preload.configure_subprocess()
    return contextlib.nullcontext()


__all__ = ["TorchMemorySaver", "configure_subprocess", "register_hook_mode", "torch_memory_saver"]
