"""hook_mode "preload": libtms.so interposes cudaMalloc, by LD_PRELOAD."""

from __future__ import annotations

import contextlib

from tms import NotPreloadedError
from tms._library import load
from tms._subprocess import preloading

from ..utils import get_binary_path_from_package
from .base import HookUtilBase


class HookUtilModePreload(HookUtilBase):
    """The library that this process was started with.

    Raises:
        NotPreloadedError: it was started without one.
    """

    def __init__(self) -> None:
        try:
            load()
        except NotPreloadedError as error:
            raise NotPreloadedError(
                f"{error}\nWithout a preload there is torch_memory_saver.hook_mode = 'torch', to "
                "be set before anything else."
            ) from None


def configure_subprocess() -> contextlib._GeneratorContextManager[None]:
    """Starts the child processes of the body with the library, by LD_PRELOAD in os.environ.

    As `tms.configure_subprocess`, except for the name under which the library is found.
    """
    stem = "torch_memory_saver_hook_mode_preload"
    return preloading(lambda: str(get_binary_path_from_package(stem)))
