"""Settings that hold for a thread from the start of a with statement to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
import weakref
from typing import TYPE_CHECKING, Any, Callable, Generic, TypeVar

from . import _own_pools, _torch, _unseen
from ._library import Library, load

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Value = TypeVar("_Value")

_LATER = {
    "is a coroutine function (async def)": inspect.iscoroutinefunction,
    "is a generator function": inspect.isgeneratorfunction,
    "is an async generator function": inspect.isasyncgenfunction,
}


class Scope(contextlib.ContextDecorator, contextlib.AbstractContextManager[None]):
    """A context manager that also decorates functions, but none whose body runs after the call."""

    name: str
    """The program's name for it, for messages."""

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


class _Exit:
    """The `__exit__` of a `ThreadScope`.

    A with statement looks it up before it enters, and holds what it got to its end. If Ctrl-C comes
    when Python is about to call that, it goes without having been called, and `_Frame` notices.
    """

    def __get__(self, scope: ThreadScope | None, owner: type) -> Callable[..., None]:
        if scope is None:
            return _leave
        found = functools.partial(_leave, scope)
        _thread.looked_up = scope, weakref.ref(found)
        return found


def _leave(scope: ThreadScope, *exception: object) -> None:
    scope._leave()


@dataclasses.dataclass(eq=False, repr=False)
class ThreadScope(Scope):
    """A `Scope` that belongs to the thread that enters it. It can be entered again, even in itself.

    Every setting has a stack. A scope that is left out of order is taken from the middle of its
    stacks, so what was entered later keeps holding, and then gives way to what held before the
    first.

    A signal handler may raise at any point, as Ctrl-C does. The scope is still entered or left
    wholly then.
    """

    name: str
    route: Callable[[Library], _torch.Route | None]
    """Enters the pool that serves the thread's CUDA tensors, if there is one."""
    settings: Callable[[Library], dict[str, Any]] = lambda library: {}
    """Returns the attributes of `Library` that hold for the thread, and their values."""
    disposes: bool = False
    """Whether free memory of the pool that served goes back to the device at the end."""
    load: Callable[[], Library] = load
    any_pool: bool = False
    """Whether it holds for whatever pool serves, also one of the program's own."""
    _entered: list[_Frame] = dataclasses.field(default_factory=list, init=False)

    def __enter__(self) -> None:
        frames, routes = [*_thread.frames], _torch.depth()

        def undo() -> None:
            for frame in [frame for frame in _thread.frames if frame not in frames]:
                frame.take_out()
            _torch.leave_since(routes)

        try:
            self._enter()
        except BaseException:
            _undo(undo)
            raise

    def _enter(self) -> None:
        (looking, found), _thread.looked_up = _thread.looked_up, _NONE
        library = self.load()
        _drop_abandoned()
        settings = self.settings(library)
        served_by_another = _torch.busy()
        if served_by_another:
            settings = {"active": False}
        elif _thread.own_pools and settings.get("active") and not self.any_pool:
            _own_pools.tell_of_regions()
            served_by_another, settings = True, {}
        outermost = settings.get("active") and not library.active
        unseen = _unseen.watch(library) if outermost else None
        frame = _Frame(self, library, None if served_by_another else self.route(library), unseen)
        _thread.frames.append(frame)
        self._entered.append(frame)
        frame.set(settings)
        held = found()
        if looking is self and held is not None:
            frame.exit = weakref.ref(held, frame.dropped)

    if TYPE_CHECKING:

        def __exit__(self, *exception: object) -> None: ...
    else:
        __exit__ = _Exit()

    def _leave(self) -> None:
        frames = [*_thread.frames]
        entered = [frame for frame in frames if frame.scope is self]
        frame = entered[-1] if entered else None
        try:
            _drop_abandoned()
            if frame is None or frame.abandoned:
                self._refuse()
                return
            later = frames[frames.index(frame) + 1 :]
            if frame.unseen is not None:
                frame.unseen.tell(self, frame.route)
            frame.take_out()
            if self.disposes and frame.route and frame.route.pool:
                _torch.dispose(frame.route.pool)
        except BaseException:
            if frame is not None:
                _undo(frame.take_out)
            raise
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


def _undo(step: Callable[[], None]) -> None:
    """Makes a step that an interruption may cut off, and that can be made again, to its end.

    Raises what the last of several tries raised.
    """
    for last in range(_TRIES):
        try:
            step()
        except BaseException:
            if last == _TRIES - 1:
                raise
        else:
            return


_TRIES = 5
"""A key that is held down interrupts some 30 times a second."""


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
    exit: Any = None
    """A weak reference to what the with statement calls at its end."""

    def dropped(self, exit: object) -> None:
        """The with statement has ended, without leaving the scope if it is still entered."""
        self.abandoned = True
        if self in _thread.frames:  # else it was entered on another thread
            _undo(self.take_out)

    def set(self, settings: dict[str, Any]) -> None:
        for name, value in settings.items():
            self.before[name] = getattr(self.library, name)
            setattr(self.library, name, value)

    def take_out(self) -> None:
        """Restores the settings from before, or lets later scopes restore them when they end.

        Can be called again after an interruption, and does nothing once it is done.
        """
        frames = _thread.frames
        if self not in frames:
            return
        later = frames[frames.index(self) + 1 :]
        for name, value in self.before.items():
            heirs = [frame for frame in later if name in frame.before]
            if heirs:
                heirs[0].before[name] = value
            else:
                setattr(self.library, name, value)
        _torch.leave(self.route)
        if self in self.scope._entered:
            self.scope._entered.remove(self)
        self.exit = None
        frames.remove(self)


def _drop_abandoned() -> None:
    for frame in [frame for frame in _thread.frames if frame.abandoned]:
        frame.take_out()


def _thread_name(ident: int) -> str:
    names = [thread.name for thread in threading.enumerate() if thread.ident == ident]
    return f"thread {names[0]!r}" if names else "a thread that has ended"


class _Thread(_torch.thread_local):  # type: ignore[misc]
    """The scopes that the current thread has entered, the innermost last."""

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.own_pools: list[tuple[tuple[int, int], _OwnPool]] = []
        """The ids of the program's own pools that serve the thread."""
        self.looked_up = _NONE
        """The scope whose `__exit__` was looked up last, and a weak reference to that."""


_NONE: tuple[object, Callable[[], object]] = None, lambda: None

_thread = _Thread()


class _OwnPool(ThreadScope):
    """Holds while a pool of the program's own serves: memory is as outside all regions."""

    def __init__(self) -> None:
        super().__init__(
            "torch.cuda.use_mem_pool()", lambda library: _torch.set_aside(), _outside, any_pool=True
        )


def _outside(library: Library) -> dict[str, Any]:
    """The settings from before all that the thread has entered."""
    found: dict[str, Any] = {}
    for frame in reversed(_thread.frames):
        found.update(frame.before)
    return found


def own_pool_begun(identity: tuple[int, int]) -> None:
    """The program makes a pool of its own serve this thread."""
    scope = _OwnPool()
    if _thread.frames and not _thread.own_pools:
        if load().active:
            _own_pools.tell_of_regions()
        scope.__enter__()
    _thread.own_pools.append((identity, scope))


def own_pool_ended(identity: tuple[int, int]) -> None:
    """It ends, perhaps on another thread than it began."""
    for one in reversed(_thread.own_pools):
        if one[0] == identity:
            _thread.own_pools.remove(one)
            for frame in [frame for frame in _thread.frames if frame.scope is one[1]]:
                frame.take_out()
            return


_own_pools.begun, _own_pools.ended = own_pool_begun, own_pool_ended
