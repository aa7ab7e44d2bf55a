"""What holds for a thread from the start of a with statement to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import threading
from typing import Any, Callable, Generic, TypeVar

from . import _torch, _unseen
from ._library import Library, load

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")

_LATER = {
    "is a coroutine function (async def)": inspect.iscoroutinefunction,
    "is a generator function": inspect.isgeneratorfunction,
    "is an async generator function": inspect.isasyncgenfunction,
}


class Scope(contextlib.ContextDecorator):
    """A context manager that also decorates functions, but none whose body runs after the call."""

    name: str
    """What the program calls it, for messages."""

    def __str__(self) -> str:
        return self.name

    def __call__(self, function: _Function) -> _Function:
        for kind, is_so in _LATER.items():
            if is_so(function):
                name = getattr(function, "__qualname__", repr(function))
                raise TypeError(
                    f"{self} cannot decorate {name}, which {kind}: its body runs when the call has "
                    f"returned and the {self} around it is over. Write `with {self}:` in the body, "
                    "around a part without await and yield."
                )
        return super().__call__(function)


@dataclasses.dataclass(eq=False, repr=False)
class Between(Scope, Generic[_Value]):
    """Calls `enter` before the body, and `leave` with its result after it, even if that raised."""

    name: str
    enter: Callable[[], _Value]
    leave: Callable[[_Value], object]
    _entered: list[_Value] = dataclasses.field(default_factory=list, init=False)

    def __enter__(self) -> None:
        self._entered.append(self.enter())

    def __exit__(self, *exception: object) -> None:
        self.leave(self._entered.pop())


@dataclasses.dataclass(eq=False, repr=False)
class ThreadScope(Scope):
    """A `Scope` that belongs to the thread that enters it. It can be entered again, even in itself.

    Every setting has a stack. A scope that is left out of order is taken from the middle of its
    stacks, so what was entered later keeps holding, and then gives way to what held before the
    first.
    """

    name: str
    route: Callable[[Library], _torch.Route | None]
    """Enters what serves the thread's CUDA tensors; None: nothing."""
    settings: Callable[[Library], dict[str, Any]] = lambda library: {}
    """Returns the attributes of `Library` that hold for the thread, and their values."""
    disposes: bool = False
    """Whether free memory of the pool that served goes back to the device at the end."""
    load: Callable[[], Library] = load
    _entered: list[_Frame] = dataclasses.field(default_factory=list, init=False)

    def __enter__(self) -> None:
        library = self.load()
        _drop_abandoned()
        settings = self.settings(library)
        outermost = settings.get("active") and not library.active
        unseen = _unseen.watch(library) if outermost else None
        frame = _Frame(self, library, self.route(library), unseen)
        _thread.frames.append(frame)
        self._entered.append(frame)
        try:
            frame.set(settings)
        except BaseException:
            frame.take_out()
            raise

    def __exit__(self, *exception: object) -> None:
        _drop_abandoned()
        frames = _thread.frames
        frame = next((frame for frame in reversed(frames) if frame.scope is self), None)
        if frame is None:
            self._refuse()
            return
        later = frames[frames.index(frame) + 1 :]
        if frame.unseen is not None:
            frame.unseen.tell(self, frame.route)
        frame.take_out()
        if self.disposes and frame.route and frame.route.pool:
            _torch.dispose(frame.route.pool)
        if later:
            raise RuntimeError(
                f"{self} is left before {later[-1].scope}, which was entered later in the same "
                f"thread. What this thread has allocated since then went where the latter says, "
                f"and goes on to do so until that is left too. {_ADVICE}"
            )

    def _refuse(self) -> None:
        entered = [frame for frame in self._entered if not frame.abandoned]
        if not entered:
            raise RuntimeError(f"{self} is left without having been entered.")
        frame = entered[-1]
        frame.abandoned = True
        raise RuntimeError(
            f"{self} is left on {_thread_name(threading.get_ident())}, but was entered on "
            f"{_thread_name(frame.ident)}. Nothing changes for the former; the latter stays in it "
            f"until it next enters or leaves a region, or ends. {_ADVICE}"
        )


_ADVICE = (
    "A region belongs to a thread, not to a task, greenlet or generator: do not await, switch or "
    "yield in one. pymodule/README.md shows what to do with asyncio."
)


@dataclasses.dataclass(eq=False)
class _Frame:
    """One entry of a scope that has not been left yet."""

    scope: ThreadScope
    library: Library
    route: _torch.Route | None
    unseen: _unseen.Watch | None
    ident: int = dataclasses.field(default_factory=threading.get_ident)
    abandoned: bool = False
    """Left on another thread, which can't restore this one's settings."""
    before: dict[str, Any] = dataclasses.field(default_factory=dict)

    def set(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self.before[name] = getattr(self.library, name)
            setattr(self.library, name, value)

    def take_out(self) -> None:
        """Restores the settings from before, or lets later scopes restore them when they end."""
        frames = _thread.frames
        later = frames[frames.index(self) + 1 :]
        frames.remove(self)
        self.scope._entered.remove(self)
        for name, value in self.before.items():
            heir = next((frame for frame in later if name in frame.before), None)
            if heir is None:
                setattr(self.library, name, value)
            else:
                heir.before[name] = value
        _torch.leave(self.route)


def _drop_abandoned() -> None:
    for frame in [frame for frame in _thread.frames if frame.abandoned]:
        frame.take_out()


def _thread_name(ident: int) -> str:
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0]!r}" if names else "a thread that has ended"


class _Thread(_torch.thread_local):  # type: ignore[misc]
    """What the current thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []


_thread = _Thread()
