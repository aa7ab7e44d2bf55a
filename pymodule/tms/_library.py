"""libtms.so: where its file is, and its functions once it is preloaded."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Generic, TypeVar, cast

from ._arguments import check_tags
from ._errors import LibraryNotFoundError, NotPreloadedError, TmsError, from_code
from ._functions import SIGNATURES, typed

_PACKAGE = Path(__file__).resolve().parent


def library_path() -> str:
    """The path of libtms.so, for LD_PRELOAD.

    It is the first of: the environment variable TMS_LIBRARY, the package's own lib/libtms.so, a
    source checkout's build/lib/libtms.so.

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
    return _first(
        [_PACKAGE / "lib" / "libtms.so", _PACKAGE.parent.parent / "build" / "lib" / "libtms.so"],
        ", or set TMS_LIBRARY to the file's path",
    )


def command_path() -> str:
    """The path of the command tms.

    It is a source checkout's build/bin/tms, or where an installer puts the scripts of the package:
    in bin/ beside it (pip install --target), or in bin/ of the prefix that has its site-packages (a
    virtual environment, an environment of conda, ~/.local).

    Raises:
        LibraryNotFoundError: it is in none of these places.
    """
    site = _PACKAGE.parent
    places = [site.parent / "build" / "bin" / "tms"]
    if (_PACKAGE / "lib").is_dir():  # as in a wheel
        places = [site / "bin" / "tms", site.parent.parent.parent / "bin" / "tms"]
    return _first(places, ", or install the wheel again")


def _first(places: list[Path], otherwise: str) -> str:
    """The first of the places that is a file.

    Raises:
        LibraryNotFoundError: none of them is.
    """
    for place in places:
        if place.is_file():
            return str(place)
    raise LibraryNotFoundError(
        f"{places[0].name} is not at {' or '.join(map(str, places))}. In a source checkout run "
        f"scripts/build.sh{otherwise}."
    )


_Value = TypeVar("_Value")


class _Setting(Generic[_Value]):
    """A setting of the calling thread, with a function that gets it and one that sets it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, library: Library, owner: object) -> _Value:
        return cast(_Value, getattr(library.c, f"tms_get_{self._name}")())

    def __set__(self, library: Library, value: _Value) -> None:
        getattr(library.c, f"tms_set_{self._name}")(value)


class Library:
    """The libtms.so that this process was started with.

    Attributes:
        c: the functions of tms.h.
        active, excluded, tag, backup, incremental, cpu_backup_backend: the calling thread's.
    """

    interposes = True
    """Whether it was preloaded, so that it takes the program's CUDA calls; see `attach`."""

    active = _Setting[bool]("interesting_region")
    """Whether allocations are pausable."""
    excluded = _Setting[bool]("excluded")
    """Whether they are ordinary, whatever `active` says."""
    tag = _Setting[bytes]("current_tag")
    backup = _Setting[bytes]("backup")
    """Where their contents wait while they are paused: b"none", or a name of `Backup`."""
    incremental = _Setting[bool]("enable_incremental_backup")
    """Whether a pause to host memory copies only changed contents."""
    cpu_backup_backend = _Setting[bytes]("cpu_backup_backend")
    """The kind of host memory: b"pinned" or b"mmap"."""

    def __init__(self, process: ctypes.CDLL) -> None:
        self._process = process
        self._has_driver = False
        for name in SIGNATURES:
            if not hasattr(process, name):
                raise TmsError(
                    f"The preloaded library has no {name}: it is another version of libtms.so, "
                    f"or another library. Preload {_path_or_advice()} instead."
                )
        self.c = SimpleNamespace(**{name: typed(process[name], name) for name in SIGNATURES})
        self.incremental_by_default = self.incremental
        """The environment's setting; regions change it for their thread."""

    def address_of(self, name: str) -> int:
        """The address of a function of the library."""
        return ctypes.cast(self._process[name], ctypes.c_void_p).value or 0

    @property
    def last_error(self) -> str:
        """The library's text for this thread's last failure."""
        return bytes(self.c.tms_last_error()).decode(errors="replace")

    @property
    def last_bytes(self) -> int:
        """Returns tms_last_bytes, even after a resume that failed because of other processes."""
        return int(self.c.tms_last_bytes())

    @property
    def stats(self) -> dict[str, Any]:
        """The fields of `tms.Stats`."""
        return cast("dict[str, Any]", json.loads(read(self.c.tms_stats_json)))

    def pause(self, tag: str | None, within: float) -> int:
        """Calls tms_pause_within and returns the bytes of device memory that it freed.

        Args:
            within: seconds for other processes to close memory of the tag.
        """
        return self.operate(f"pausing {named(tag)}", self.c.tms_pause_within, encoded(tag), within)

    def operate(self, doing: str, function: Callable[..., int], *arguments: Any) -> int:
        """Calls a function, if there is a driver to work on, and returns `last_bytes`.

        Args:
            doing: names it in errors, as in "pausing tag 'weights'".
        """
        missing = self._driver_missing()
        code = 100 if missing else function(*arguments)
        if code:
            raise from_code(code, doing, missing or self.last_error)
        return self.last_bytes

    def _driver_missing(self) -> str:
        if not self._has_driver:
            try:
                ctypes.CDLL("libcuda.so.1")
            except OSError as error:
                return f"the CUDA driver cannot be loaded: {error}"
            self._has_driver = True
        return ""


def read(function: Callable[..., int], *arguments: Any) -> str:
    """The text that a function of the library writes into a buffer, its last two arguments."""
    room = 1
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = function(*arguments, buffer, room)
        if length < room:
            return buffer.value.decode()
        room = 1 + length  # which may be too little again, because the text may grow


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
    """Makes this package use a libtms.so that the process opened and did not preload."""
    global _loaded
    _loaded = Library(process)
    _loaded.interposes = False
    return _loaded


def named(tag: str | list[str] | None) -> str:
    """Tags as text."""
    return "all tags" if tag is None else f"tag {', '.join(map(repr, check_tags(tag) or []))}"


def encoded(tag: str | None) -> bytes | None:
    return None if tag is None else tag.encode(errors="surrogateescape")


def texts(tags: list[str]) -> Any:
    """A list in C's form, which ends with NULL."""
    return (ctypes.c_char_p * (len(tags) + 1))(*map(encoded, tags))


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
