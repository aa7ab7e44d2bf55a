"""Regions left on another thread, or in an order other than that of entering; and asyncio."""

from __future__ import annotations

import asyncio
import functools
import gc
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import children
import cuda
import pytest
import tags
from cuda import MiB
from simulator import HANGS
from threads import in_threads

import tms
from tms._library import load
from tms._scope import Scope


def state() -> tuple[bool, str]:
    """Whether this thread's allocations are pausable, and their tag."""
    return load().active, load().tag.decode()


OUTSIDE = (False, "default")


def inside(tag: str, backup: tms.Backup = None) -> Iterator[None]:
    """A generator that is suspended within a region."""
    with tms.region(tag, backup):
        yield


def test_left_in_another_order() -> None:
    first, second = inside("first", "host"), inside("second")
    next(first)
    next(second)
    assert state() == (True, "second")
    with pytest.raises(RuntimeError, match=r"region\('first'\) is left before .*'second'\)"):
        next(first)
    assert state() == (True, "second")
    assert load().backup == b"none"
    pointer = cuda.malloc(2 * MiB)
    assert tags.total("segments", "second") == 1
    next(second, None)
    assert state() == OUTSIDE
    assert load().backup == b"none"
    cuda.free(pointer)


def test_left_in_the_middle_of_three() -> None:
    outer, middle = inside("outer"), inside("middle", "host")
    next(outer)
    next(middle)
    with tms.disable():
        with pytest.raises(RuntimeError, match=r"middle.* is left before tms.disable\(\)"):
            next(middle)
        assert not load().active
    assert state() == (True, "outer")
    assert load().backup == b"none"
    next(outer, None)
    assert state() == OUTSIDE


def test_what_the_body_raised_is_kept() -> None:
    region = tms.region("first")
    with pytest.raises(RuntimeError, match="left before") as caught, region:
        other = inside("second")
        next(other)
        raise KeyError("body")
    assert isinstance(caught.value.__context__, KeyError)
    other.close()
    assert state() == OUTSIDE


def test_left_on_another_thread() -> None:
    """Here nothing changes; the other thread's region ends when that next enters or leaves one."""
    generators: list[Iterator[None]] = []
    suspended, left = threading.Event(), threading.Event()
    seen: list[object] = []

    def work() -> None:
        with tms.region("theirs"):
            generators.append(inside("suspended", "host"))
            next(generators[0])
            suspended.set()
            assert left.wait(HANGS)
            seen.append(state())
            with tms.region("next"):
                seen.append(state())
            seen.append(state())
            seen.append(load().backup)
        seen.append(state())

    thread = threading.Thread(target=work, name="worker")
    thread.start()
    assert suspended.wait(HANGS)
    with tms.region("mine"):
        with pytest.raises(
            RuntimeError, match="left on thread 'MainThread', but was entered on thread 'worker'"
        ):
            next(generators[0])
        assert state() == (True, "mine")
    assert state() == OUTSIDE
    left.set()
    thread.join()
    assert seen == [(True, "suspended"), (True, "next"), (True, "theirs"), b"none", OUTSIDE]


def test_collected_on_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abandoned generator: Python can't raise the error, and prints it on stderr."""
    said: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda about: said.append(str(about.exc_value)))
    generators: list[Iterator[None]] = []

    def work() -> None:
        generators.append(inside("abandoned"))
        next(generators[0])

    in_threads(work)
    with tms.region("mine"):
        generators.clear()
        gc.collect()
        assert state() == (True, "mine")
    assert state() == OUTSIDE
    assert len(said) == 1
    assert "but was entered on a thread that has ended" in said[0]


def test_left_without_having_been_entered() -> None:
    with pytest.raises(RuntimeError, match="left without having been entered"):
        tms.region("never").__exit__(None, None, None)


@pytest.mark.parametrize(
    ("scope", "within"),
    [
        (tms.region("again"), (True, "again", False)),
        (tms.disable(), (False, "around", False)),
        (tms.exclude(), (True, "around", True)),
    ],
)
def test_entered_again_and_again(scope: Scope, within: tuple[bool, str, bool]) -> None:
    """One object is entered twice, within itself, and on two threads at a time."""
    both = threading.Barrier(2, timeout=HANGS)
    seen: list[object] = []

    def work() -> None:
        with tms.region("around"):
            for _ in range(2):
                with scope, scope:
                    both.wait()
                    seen.append((*state(), load().excluded))
                    both.wait()
                seen.append((*state(), load().excluded))

    in_threads(work, work)
    assert sorted(seen) == sorted([within] * 4 + [(True, "around", False)] * 4)  # type: ignore[type-var]


async def coroutine() -> None:
    raise AssertionError("called")


def generator() -> Iterator[None]:
    raise AssertionError("called")
    yield


async def async_generator() -> AsyncIterator[None]:
    raise AssertionError("called")
    yield


@pytest.mark.parametrize(
    "scope", [tms.region("decorating"), tms.disable(), tms.exclude(), tms.paused()]
)
@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (coroutine, "coroutine, which is a coroutine function"),
        (functools.partial(coroutine), "is a coroutine function"),
        (generator, "generator, which is a generator function"),
        (async_generator, "async_generator, which is an async generator function"),
    ],
)
def test_refuses_to_decorate(scope: Scope, function: object, kind: str) -> None:
    with pytest.raises(TypeError, match=f"cannot decorate .*{kind}"):
        scope(function)  # type: ignore[type-var]


def test_tasks_within_regions_are_told() -> None:
    """Awaiting in a region lets other tasks run in it; tasks that interleave get an error."""

    async def task(tag: str, enter: float, leave: float) -> None:
        await asyncio.sleep(enter)
        with tms.region(tag):
            await asyncio.sleep(leave)

    async def main() -> list[object]:
        tasks = [task("early", 0, 0.1), task("late", 0.05, 0.1)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    early, late = asyncio.run(main())
    assert isinstance(early, RuntimeError)
    assert "README" in str(early)
    assert late is None
    assert state() == OUTSIDE


def test_the_readmes_recipe_for_asyncio() -> None:
    """The recipe as README.md has it, beside a task that is in no region."""
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    (recipe,) = re.findall(r"```python\n(import asyncio\n.*?)```", readme, re.DOTALL)
    out = children.output(
        f"""
        import textwrap, cuda, tms
        from concurrent.futures import ThreadPoolExecutor
        recipe = {recipe!r}
        made = []
        def allocate(size):
            made.append(cuda.malloc(size))
            return made[-1]
        exec(recipe)
        async def plain():
            for _ in range(20):
                allocate(2 << 20)
                await asyncio.sleep(0.001)
        async def main():
            await asyncio.gather(plain(), *(serve(n) for n in range(4)))
        asyncio.run(main())
        import tags
        print(len(made), {{tag["tag"]: tag["segments"] for tag in tags.entries()}})
        """
    )
    assert out == "28 {'cache': 4, 'scratch': 4}\n"


def test_greenlets_share_a_thread() -> None:
    """gevent replaces threading.local by one per greenlet; a region belongs to the thread."""
    out = children.output(
        """
        import sys, threading, types
        real = threading.local
        class PerGreenlet:
            def __init_subclass__(cls): raise AssertionError("the patched one was used")
        threading.local = PerGreenlet
        sys.modules["gevent.monkey"] = types.SimpleNamespace(
            get_original=lambda module, name: {("threading", "local"): real}[module, name])
        import tms
        with tms.region("one"):
            print(tms.last_error() == "")
        """
    )
    assert out == "True\n"
