"""Exceptions for what can go wrong, which say what to do about it."""

from __future__ import annotations

import re


class TmsError(RuntimeError):
    """Something that tms was asked to do did not happen.

    Attributes:
        code: the `cudaError_t` number that the library returned (CUDA runtime API, "Error
            handling"), 0 where no call into the library was made.
        cause: the library's own text for the failure, with the driver's function, or "".
    """

    def __init__(self, message: str, *, code: int = 0, cause: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.cause = cause


class NotPreloadedError(TmsError):
    """libtms.so is not part of this process; the message says how to start the process with it."""


class LibraryNotFoundError(TmsError, FileNotFoundError):
    """There is no libtms.so in any of the usual places."""


class OutOfMemoryError(TmsError, MemoryError):
    """The device has too little free memory (code 2). What was paused stays paused."""


class ForkedError(TmsError):
    """The process was forked after CUDA or tms had been used in its parent (code 3)."""


class BackupError(TmsError):
    """The operating system refused something (code 304): host memory, or files, for contents."""


class NotSupportedError(TmsError):
    """The driver, the device, PyTorch or the moment rules the request out (code 801)."""


class ContentsError(TmsError):
    """A resume cannot bring back what was paused.

    Its file is gone, cut or unreadable (backup="disk", code 301), or, with TMS_VERIFY=1, it
    differs from what it was (code 401). After `pause(everything=True)`: the driver has lost the
    process, which must be ended (code 401). `Kept.attach` raises it for a set that has changed,
    too.
    """


class GroupError(TmsError):
    """Several processes were to do something together, and one of them could not.

    `tms.distributed` and `tms.ray` raise it.

    Attributes:
        rank: the first of those that could not: in `tms.ray` the actor's place in the list.
        host: the machine it runs on, "" where that is not known.
    """

    def __init__(
        self, message: str, *, code: int = 0, cause: str = "", rank: int = -1, host: str = ""
    ) -> None:
        super().__init__(message, code=code, cause=cause)
        self.rank = rank
        self.host = host


class CaptureError(TmsError):
    """A stream is being captured into a CUDA graph (code 900)."""


_STICKY = {700, 702, 709, 710, 714, 715, 716, 717, 718, 719}
"""cudaErrorIllegalAddress and others after which every call in the process fails."""

_KNOWN: dict[int, tuple[type[TmsError], str]] = {
    2: (
        OutOfMemoryError,
        "Nothing is lost: free device memory "
        "(tms.empty_cache() gives back what PyTorch only caches) and call again.",
    ),
    3: (
        ForkedError,
        "CUDA does not survive fork(): start workers with the 'spawn' method, "
        "or fork before CUDA and tms are first used.",
    ),
    100: (TmsError, "No CUDA device was found: check nvidia-smi and CUDA_VISIBLE_DEVICES."),
    304: (BackupError, "Nothing is lost: call again when that is mended."),
    301: (
        ContentsError,
        "All that was to be resumed is still paused: the rest comes back once that memory is "
        "freed, or its file can be read again.",
    ),
    401: (ContentsError, ""),  # the library's account has it
    801: (NotSupportedError, ""),
    900: (CaptureError, ""),
}


_DRIVERS = re.compile(r"(: |^)cu[A-Z]\w*: (.+?) \(\d+\)")
"""A failed driver call: cuMemMap: invalid argument (1)."""


def account(cause: str) -> str:
    """The library's text for a Python program: each thing once, and no C function."""
    words = re.sub(r"^(pause|resume|discard): ", "", cause.strip().rstrip("."))
    return _DRIVERS.sub(r"\1\2", words).replace("tms_set_", "tms.set_")


def from_code(code: int, doing: str, cause: str) -> TmsError:
    """The exception for a failed call.

    Args:
        code: the `cudaError_t` number returned, not 0.
        doing: what failed, as in "pausing tag 'weights'".
        cause: the library's account of it, may be "".
    """
    if code in _STICKY:
        known, advice = TmsError, "CUDA is unusable in this process from here on: restart it."
    else:
        known, advice = _KNOWN.get(code, (TmsError, ""))
    why = account(cause) or "the library gives no further account"
    message = f"{doing} failed: {why} (cudaError {code}). {advice}".rstrip()
    return known(message, code=code, cause=cause)
