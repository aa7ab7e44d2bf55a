"""Versions of a set: an engine goes on to the newest at the same addresses, a trainer writes it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import itertools
import json
import traceback
from typing import TYPE_CHECKING, Any

from ._errors import OutOfMemoryError
from ._kept_body import Body
from ._kept_set import Place, Set
from ._region_pools import in_one_go

if TYPE_CHECKING:
    import torch

    from ._kept import Kept


class Following:
    """A process's tensors of a set that has versions; see `Kept.follow`.

    Not safe for use by several threads at once.

    Attributes:
        name: of the set.
        tensors: by name. They stay valid over all moves, and so do their addresses.
        keeps: whether an advance keeps the version before for `back`.
    """

    def __init__(
        self, name: str, of: Set, tensors: dict[str, torch.Tensor], back: bool = False
    ) -> None:
        self.name = name
        self.tensors = tensors
        self.keeps = back
        self._set = of
        self._steps = False

    @property
    def version(self) -> int:
        """The number of the version that is mapped: the first set of the name is 1."""
        return self._set.number(self._set.library.c.tms_kept_version, "asking for the version of")

    @property
    def newest(self) -> int:
        """The number of the newest complete version. Raises TmsError if there is none."""
        library = self._set.library
        found = Set(library, self.name, "looking for", library.c.tms_kept_open)
        return found.number(library.c.tms_kept_version, "looking for")

    @property
    def before(self) -> int:
        """The number of the version that is kept for `back`. Raises TmsError if there is none."""
        return self._set.number(self._set.library.c.tms_kept_before, "going back in")

    def advance(self) -> int:
        """Maps the newest complete version in the place of the one that is mapped, without a copy.

        All tensors have their new contents when this returns, or none has after an error. Addresses
        stay, and so do CUDA graphs. Waits for the work that the devices have; give them no work on
        these tensors until this returns. What is paused stays paused, and comes back as the newest
        version. The version before goes with its last user, unless it is kept for `back`.

        Returns:
            The number of the version that is mapped now, which may be the one that was.

        Raises:
            NotSupportedError: the newest version has other names, shapes, dtypes or strides, or
                lies on another device.
            CaptureError: a stream is being captured.
            ContentsError: with TMS_VERIFY=1, it is not as it was sealed.
            TmsError: there is no complete version; this process has the set attached twice, or has
                exported its memory; or the driver has failed, and the message says what is paused
                because of that.
        """
        number = self.move("advance")
        self.finish("advance")
        return number

    def back(self) -> int:
        """Maps the version again that was mapped before the last `advance`; needs `keeps`.

        The version that was mapped until now goes with its last user; `advance` maps it again as
        long as it is the newest.

        Returns:
            The number of the version that is mapped now.

        Raises:
            TmsError: no version before is kept; else as `advance`.
        """
        number = self.move("back")
        self.finish("back")
        return number

    def move(self, operation: str, moved: ctypes.c_int | None = None) -> int:
        """`advance` or `back`, which keeps the version before until `finish`.

        Args:
            moved: becomes 1 if another version is mapped than was.
        """
        c = self._set.library.c
        ask, doing = (
            (c.tms_kept_advance, "advancing")
            if operation == "advance"
            else (c.tms_kept_back, "going back in")
        )
        return self._set.number(ask, doing, None if moved is None else ctypes.byref(moved))

    def finish(self, operation: str) -> None:
        """Ends a move that stands."""
        if operation == "back" or not self.keeps:
            self.settle()

    def manifest(self) -> dict[str, Any]:
        """What the set's maker has written."""
        return self._set.manifest()

    def step(self) -> contextlib.AbstractContextManager[None]:
        """Marks a step: all work on the tensors must be given to the device in such a body.

        From the first step on, `tms kept advance` moves the set from outside when no step is
        in progress, in any thread. A step that begins during a move waits for it, unless it lies
        within a step of its thread. The body need not wait for the device.

        Raises:
            TmsError: the set is no longer attached.
        """
        c = self._set.library.c
        if not self._steps:
            self._set.check(c.tms_kept_follow(self._set.handle, int(self.keeps)), "following")
            self._steps = True
        return _Step(c)

    def settle(self) -> None:
        """Lets the version before go, if one is kept. Its memory is free when no process has it."""
        self._set.check(self._set.library.c.tms_kept_settle(self._set.handle), "settling")


class _Step(Body[None]):
    """As `Following.step`."""

    def __init__(self, c: Any) -> None:
        self._begun: list[int] = []
        self._begin = _noting(c.tms_kept_step_begin, self._begun)
        self._end = c.tms_kept_step_end

    def __enter__(self) -> None:
        try:
            self._begin()
        except BaseException:
            self.give_up()
            raise

    def entered(self) -> bool:
        return bool(self._begun)

    def give_up(self) -> None:
        begun = len(self._begun)
        ended = itertools.starmap(self._end, itertools.repeat((), begun))
        in_one_go(ended, map(self._begun.__delitem__, itertools.repeat(0, begun)))


def _noting(function: Any, done: list[int]) -> Any:
    """`function`, each call of which adds to `done`.

    It does so within the call, so an interrupt (Ctrl-C) finds that both have happened, or neither.
    """
    noting = type(function)(ctypes.cast(function, ctypes.c_void_p).value)
    noting.restype = done.append
    return noting


class NextVersion(Body["dict[str, torch.Tensor]"]):
    """As `Kept.next`."""

    def __init__(self, kept: Kept, device: Any, copy: bool) -> None:
        self._given = kept, device, copy
        self._tensors: dict[str, torch.Tensor] = {}
        self._made: Set | None = None
        self._manifest: dict[str, Any] = {}

    def __enter__(self) -> dict[str, torch.Tensor]:
        try:
            self._made, self._manifest = _begun(*self._given, self._tensors)
        except BaseException as error:
            self.give_up()
            _let_go(error)
            raise
        return self._tensors

    def entered(self) -> bool:
        return self._made is not None

    def leave(self, *exception: object) -> None:
        try:
            if self._made is not None and not any(exception):
                self._made.seal(json.dumps({**self._manifest, TRAINED: True}).encode())
        except BaseException as error:
            _let_go(error)
            raise

    def give_up(self) -> None:
        self._made = None
        self._tensors.clear()


TRAINED = "trained"
"""In a manifest: a trainer has written the contents, and not the process that read a checkpoint."""


def _let_go(error: BaseException) -> None:
    """Takes their variables from the functions that an exception names.

    Otherwise a program that keeps the exception would keep a version that is not complete.
    """
    traceback.clear_frames(error.__traceback__)


def _begun(
    kept: Kept, device: Any, copy: bool, tensors: dict[str, torch.Tensor]
) -> tuple[Set, dict[str, Any]]:
    """The next version, whose tensors it adds to `tensors`, and the manifest."""
    torch: Any = importlib.import_module("torch")
    library = kept._library
    with type(kept)(library, kept.name) as current:  # `kept` may have an older version open
        manifest = current._manifest()
        assert current._set is not None
        has = current._set.attached(torch)
    where = has[0].device
    if device is not None and _other(torch.device(device), where):
        raise ValueError(f"the set {kept.name!r} is on {where}, and so is its next version")
    made = Set(library, kept.name, "writing", library.c.tms_kept_create, where.index)
    engines = "values" in manifest  # which have copies of what is in the private chunks
    private = manifest["private"] if engines else len(has)
    chunks: list[Any] = []
    for number, size in enumerate(manifest["chunks"]):
        chunks.append(_added(torch, made, number, max(size, 1)))
        if copy or number >= private:
            chunks[number].copy_(has[number])
    places = {name: Place(**place) for name, place in manifest["tensors"].items()}
    written = [place for name, place in places.items() if not engines or _PARAMETERS in name]
    for place in places.values():
        if not copy and place.chunk < private and place not in written:  # beside a parameter
            of = slice(place.offset, place.offset + place.bytes)
            chunks[place.chunk][of].copy_(has[place.chunk][of])
    for name, place in places.items():
        if not engines or _PARAMETERS in name:
            tensors[_plain(name)] = place.view(torch, chunks)
    return made, manifest


def _other(asked: Any, place: Any) -> bool:
    return asked.type != place.type or asked.index not in (None, place.index)


def _added(torch: Any, made: Set, number: int, size: int) -> Any:
    try:
        return made.add(torch, number, size)
    except OutOfMemoryError:
        torch.cuda.empty_cache()  # PyTorch may have some that it does not use
        return made.add(torch, number, size)


def _plain(name: str) -> str:
    """A tensor's name as in a state_dict, from that in an engine's set."""
    return name.replace(_PARAMETERS, ".").lstrip(".")


_PARAMETERS = "/_parameters/"
"""Between a module and its parameter, in the names of an engine's set (`_kept_model`)."""
