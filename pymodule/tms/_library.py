"""libtms.so: where its file is, and its functions once it is preloaded."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Callable, cast

from ._arguments import Backup, peer_of
from ._errors import LibraryNotFoundError, NotPreloadedError, TmsError, from_code

_PACKAGE = Path(__file__).resolve().parent


def library_path() -> str:
    """The path of libtms.so, for LD_PRELOAD.

    Looked for in this order: the environment variable TMS_LIBRARY, the package's own
    lib/libtms.so, a source checkout's build/lib/libtms.so.

    Raises:
        LibraryNotFoundError: it is in none of these places.
    """
    named = os.environ.get("TMS_LIBRARY")
    if named:
        if os.path.isfile(named):
            return os.path.abspath(named)
        raise LibraryNotFoundError(
            f"TMS_LIBRARY names {named}, which is no file. Correct or unset the variable."
        )
    return find("lib", "libtms.so")


def find(folder: str, name: str) -> str:
    """The path of a file of the package, or of a source checkout's build.

    Raises:
        LibraryNotFoundError: it is in neither.
    """
    candidates = [
        _PACKAGE / folder / name,
        _PACKAGE.parent.parent / "build" / folder / name,
    ]
    for candidate in candidates:
        if candidate.is_file():
            return str(candidate)
    places = " or ".join(str(candidate) for candidate in candidates)
    raise LibraryNotFoundError(
        f"{name} is not at {places}. In a source checkout run scripts/build.sh"
        + (", or set TMS_LIBRARY to the file's path." if name == "libtms.so" else ".")
    )


PROGRESS = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint64,
    ctypes.c_uint64,
    ctypes.c_void_p,
)
"""tms_progress_callback: device, operation, bytes done, bytes in total, user."""


class Library:
    """The functions of the libtms.so that this process was started with."""

    interposes = True
    """Whether it was preloaded, so that CUDA's functions are its own; see `attach`."""

    def __init__(self, process: ctypes.CDLL) -> None:
        self._process = process
        bind = self.bind
        self._set_active = bind("tms_set_interesting_region", None, ctypes.c_bool)
        self._get_active = bind("tms_get_interesting_region", ctypes.c_bool)
        self._set_excluded = bind("tms_set_excluded", None, ctypes.c_bool)
        self._get_excluded = bind("tms_get_excluded", ctypes.c_bool)
        self._set_tag = bind("tms_set_current_tag", None, ctypes.c_char_p)
        self._get_tag = bind("tms_get_current_tag", ctypes.c_char_p)
        self._set_cpu_backup = bind("tms_set_enable_cpu_backup", None, ctypes.c_bool)
        self._get_cpu_backup = bind("tms_get_enable_cpu_backup", ctypes.c_bool)
        self._set_disk_backup = bind("tms_set_enable_disk_backup", None, ctypes.c_bool)
        self._get_disk_backup = bind("tms_get_enable_disk_backup", ctypes.c_bool)
        self._set_incremental = bind("tms_set_enable_incremental_backup", None, ctypes.c_bool)
        self._get_incremental = bind("tms_get_enable_incremental_backup", ctypes.c_bool)
        self._set_peer = bind("tms_set_enable_peer_backup", None, ctypes.c_bool, ctypes.c_int)
        self._get_peer = bind(
            "tms_get_enable_peer_backup", ctypes.c_bool, ctypes.POINTER(ctypes.c_int)
        )
        self._set_backend = bind("tms_set_cpu_backup_backend", None, ctypes.c_char_p)
        self._get_backend = bind("tms_get_cpu_backup_backend", ctypes.c_char_p)
        self._pause = bind("tms_pause", ctypes.c_int, ctypes.c_char_p)
        self._pause_within = bind(
            "tms_pause_within", ctypes.c_int, ctypes.c_char_p, ctypes.c_double
        )
        self._discard = bind("tms_discard", ctypes.c_int, ctypes.c_char_p)
        self._resume = bind("tms_resume_within", ctypes.c_int, ctypes.c_char_p, ctypes.c_double)
        self._last_bytes = bind("tms_last_bytes", ctypes.c_uint64)
        self._prepare = bind("tms_prepare", ctypes.c_int, ctypes.c_char_p, ctypes.c_bool)
        self._trim = bind("tms_trim", ctypes.c_int)
        self._serve = bind("tms_serve", ctypes.c_int)
        self._pause_everything = bind("tms_pause_everything", ctypes.c_int, ctypes.c_double)
        self._set_disk_directory = bind("tms_set_disk_backup_dir", None, ctypes.c_char_p)
        self._set_progress = bind("tms_set_progress_callback", None, PROGRESS, ctypes.c_void_p)
        self._last_error = bind("tms_last_error", ctypes.c_char_p)
        self._stats_json = bind("tms_stats_json", ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
        self._has_driver = False
        self.incremental_by_default = self.incremental
        """As the environment says; regions change it for their thread."""

    def bind(self, name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
        """A function of the library, with its result's and arguments' types."""
        try:
            function = self._process[name]
        except AttributeError:
            raise TmsError(
                f"The preloaded library has no {name}: it is another version of libtms.so, "
                f"or another library. Preload {_path_or_advice()} instead."
            ) from None
        function.restype = result
        function.argtypes = list(arguments)
        return function

    def address_of(self, name: str) -> int:
        """Where a function of the library is, for those who call it by that."""
        return ctypes.cast(self._process[name], ctypes.c_void_p).value or 0

    @property
    def last_error(self) -> str:
        """The library's words for this thread's last failure."""
        return bytes(self._last_error()).decode(errors="replace")

    @property
    def active(self) -> bool:
        """Whether this thread's allocations are pausable."""
        return bool(self._get_active())

    @active.setter
    def active(self, on: bool) -> None:
        self._set_active(on)

    @property
    def excluded(self) -> bool:
        """Whether this thread's allocations are ordinary, whatever `active` says."""
        return bool(self._get_excluded())

    @excluded.setter
    def excluded(self, on: bool) -> None:
        self._set_excluded(on)

    @property
    def tag(self) -> bytes:
        """The tag of this thread's pausable allocations, as the library spells it."""
        return bytes(self._get_tag())

    @tag.setter
    def tag(self, tag: bytes) -> None:
        self._set_tag(tag)

    @property
    def backup(self) -> Backup:
        """Where the contents of this thread's pausable allocations wait while they are paused."""
        device = ctypes.c_int()
        if self._get_peer(ctypes.byref(device)):
            return cast(Backup, "peer" if device.value < 0 else f"peer:{device.value}")
        if self._get_cpu_backup():
            return "host"
        return "disk" if self._get_disk_backup() else None

    @backup.setter
    def backup(self, backup: Backup) -> None:
        peer = peer_of(backup)
        for on in (False, True):  # no two are on at a time, which would be an error
            if (backup == "host") == on:
                self._set_cpu_backup(on)
            if (backup == "disk") == on:
                self._set_disk_backup(on)
            if (peer is not None) == on:
                self._set_peer(on, -1 if peer is None else peer)

    @property
    def incremental(self) -> bool:
        """Whether pausing copies only what has changed of what goes to host memory."""
        return bool(self._get_incremental())

    @incremental.setter
    def incremental(self, on: bool) -> None:
        self._set_incremental(on)

    @property
    def cpu_backup_backend(self) -> bytes:
        """The kind of host memory of this thread's pausable allocations: b"pinned" or b"mmap"."""
        return bytes(self._get_backend())

    @cpu_backup_backend.setter
    def cpu_backup_backend(self, name: bytes) -> None:
        self._set_backend(name)

    @property
    def started(self) -> bool:
        """Whether the library has been needed in this process."""
        return bool(json.loads(self.stats_json())["started"])

    @property
    def everything(self) -> bool:
        """Whether all is paused, the driver's part too: calls of CUDA wait."""
        return bool(json.loads(self.stats_json())["everything"])

    def pause(self, tag: str | None, within: float | None = None) -> int:
        """tms_pause, its error code raised; the bytes of device memory that it freed.

        Args:
            within: seconds for other processes that have memory of the tag open
                (tms_pause_within).
        """
        self._find_driver("pausing", tag)
        name = _encoded(tag)
        code = self._pause(name) if within is None else self._pause_within(name, within)
        self._check(code, "pausing", tag)
        return self.last_bytes

    @property
    def last_bytes(self) -> int:
        """tms_last_bytes: also of a resume that was an error, because of other processes."""
        return int(self._last_bytes())

    def discard(self, tag: str | None) -> int:
        """tms_discard, as `pause`."""
        self._find_driver("discarding", tag)
        self._check(self._discard(_encoded(tag)), "discarding", tag)
        return int(self._last_bytes())

    def resume(self, tag: str | None) -> int:
        """tms_resume, waiting for nothing, its error code raised; the bytes that it mapped."""
        self._find_driver("resuming", tag)
        self._check(self._resume(_encoded(tag), 0), "resuming", tag)
        return int(self._last_bytes())

    def prepare(self, tag: str | None, wait: bool) -> None:
        """tms_prepare, its error code raised."""
        self._find_driver("preparing", tag)
        self._check(self._prepare(_encoded(tag), wait), "preparing", tag)

    def trim(self) -> None:
        """tms_trim, its error code raised."""
        self._find_driver("trimming", None)
        self._check(self._trim(), "trimming", None)

    def pause_everything(self, timeout: float) -> int:
        """tms_pause_everything, its error code raised; the bytes that it freed (tms_last_bytes)."""
        code = self._pause_everything(timeout)
        if code:
            raise from_code(code, "pausing everything", self.last_error)
        return int(self._last_bytes())

    def serve(self) -> None:
        """tms_serve, its error code raised."""
        missing = self._driver_missing()
        code = 100 if missing else self._serve()
        if code:
            raise from_code(code, "listening", missing or self.last_error)

    def set_disk_directory(self, path: bytes) -> None:
        """tms_set_disk_backup_dir."""
        self._set_disk_directory(path)

    def set_progress(self, callback: Any) -> None:
        """tms_set_progress_callback, of a `PROGRESS`; None: no more calls."""
        self._set_progress(PROGRESS() if callback is None else callback, None)

    def stats_json(self) -> str:
        """The text of tms_stats_json."""
        room = 1 + self._stats_json(None, 0)
        while True:
            buffer = ctypes.create_string_buffer(room)
            length: int = self._stats_json(buffer, room)
            if length < room:
                return buffer.value.decode()
            room = 1 + length  # it has grown in between

    def _check(self, code: int, doing: str, tag: str | None, cause: str = "") -> None:
        if code:
            what = "all tags" if tag is None else f"tag {tag!r}"
            raise from_code(code, f"{doing} {what}", cause or self.last_error)

    def _find_driver(self, doing: str, tag: str | None) -> None:
        """Without a driver nothing can ever have been made that the library would pause."""
        missing = self._driver_missing()
        self._check(100 if missing else 0, doing, tag, missing)

    def _driver_missing(self) -> str:
        if not self._has_driver:
            try:
                ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                return f"the CUDA driver cannot be loaded: {error}"
            self._has_driver = True
        return ""


_loaded: Library | None = None


def load() -> Library:
    """The preloaded library.

    Raises:
        NotPreloadedError: the process was started without it.
    """
    global _loaded
    if _loaded is None:
        process = ctypes.CDLL(None)
        if not hasattr(process, "tms_pause"):
            raise NotPreloadedError(_how_to_preload())
        _loaded = Library(process)
    return _loaded


def attach(process: ctypes.CDLL) -> Library:
    """Makes a libtms.so that was opened, not preloaded, the one that this package uses."""
    global _loaded
    _loaded = Library(process)
    _loaded.interposes = False
    return _loaded


def _encoded(tag: str | None) -> bytes | None:
    return None if tag is None else tag.encode(errors="surrogateescape")


def _path_or_advice() -> str:
    try:
        return library_path()
    except LibraryNotFoundError:
        return "/path/to/libtms.so"


def _how_to_preload() -> str:
    path = _path_or_advice()
    script = sys.argv[0] if sys.argv else ""
    if os.path.isfile(script):
        command = shlex.join(["python", *sys.argv])
    else:
        command = "python your_script.py"
    message = (
        "libtms.so is not loaded into this process, so there is nothing to pause. Start it with\n"
        f"    LD_PRELOAD={shlex.quote(path)} {command}\n"
        "or start the processes that need it inside tms.configure_subprocess()."
    )
    preload = os.environ.get("LD_PRELOAD", "")
    if "libtms.so" in preload:
        message += (
            f"\nLD_PRELOAD is {preload!r}, but the dynamic loader did not take it: check that the "
            "file exists and can be read, and that it was set before the process started."
        )
    return message
