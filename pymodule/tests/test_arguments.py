"""Every public function refuses a wrong argument by its name, before it does anything."""

from __future__ import annotations

import functools
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from simulator import HANGS

import tms
import tms.distributed
import tms.ray

PASSED_ON = {
    "tms.cuda_graph": {"cuda_graph", "pool", "stream", "capture_error_mode"},
    "tms.distributed.pause": {"group"},
    "tms.distributed.paused": {"group"},
    "tms.distributed.resume": {"group"},
    "tms.Pool": {"library", "kind", "handle"},
    "tms.Kept": {"library", "name"},
    "tms.Kept.next": {"device"},
    "tms.distributed.advance": {"group"},
    "tms.distributed.back": {"group"},
    "tms.Following": {"name", "of", "tensors", "back"},
    "tms.Following.move": {"operation", "moved"},
    "tms.Following.finish": {"operation"},
}
"""Arguments that PyTorch checks, and those of what a program does not call itself."""

METHODS = {
    "tms.Pool": "tms.Pool(None, 'buddy', None)",
    "tms.Kept": "tms.Kept(None, 'a')",
    "tms.Following": "tms.Following('a', None, {})",
}

GIVEN = {"kind": "'buddy'", "name": "'a'", "tensors": "[Tensor()]", "parts": "[True]", "size": "1"}
GIVEN |= {"address": "512", "stream": "0", "actors": "[Actor()]", "from_": "[Actor()]"}
GIVEN |= {"following": "tms.Following('a', None, {})"}
GIVEN |= {"model": "None"}
GIVEN |= {"to": "[Actor()]", "cuda_graph": "None", "source": "{}", "path": "'/tmp'"}
"""Values of arguments that must be given."""

HEAD = """
import json, sys, types
torch = types.ModuleType("torch")
torch.nn = types.SimpleNamespace(Module=type("Module", (), {}))
sys.modules["torch"] = torch
import tms, tms.distributed, tms.ray

class Wrong:
    def __repr__(self):
        return "the wrong thing"

class Tensor:
    shape, nbytes = (4, 8), 32
    def data_ptr(self): return 512
    def is_contiguous(self): return True

class Actor:
    __ray_call__ = None

said = {}
for call in json.load(sys.stdin):
    try:
        eval(call)
        said[call] = "nothing", ""
    except BaseException as error:
        said[call] = type(error).__name__, str(error)
json.dump(said, sys.stdout)
"""
"""A process without libtms.so, in which all that goes past the checks is a NotPreloadedError."""


def functions() -> Iterator[tuple[str, str, Any]]:
    """The public functions and methods: name, how to call it, and the function."""
    for module in (tms, tms.distributed, tms.ray):
        for name in module.__all__:
            value, dotted = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isfunction(value):
                yield dotted, dotted, value
            elif inspect.isclass(value) and not issubclass(value, (Exception, dict)):
                for method, function in vars(value).items():
                    if not method.startswith("_") and inspect.isfunction(function):
                        bound = functools.partial(function, None)
                        yield f"{dotted}.{method}", f"{METHODS[dotted]}.{method}", bound


def generated() -> Iterator[tuple[str, str]]:
    """A call with one argument of a wrong type, and the argument's name."""
    for dotted, call, function in functions():
        parameters = inspect.signature(function).parameters.values()
        for wrong in parameters:
            if wrong.name in PASSED_ON.get(dotted, ()):
                continue
            given = {
                each.name: GIVEN[each.name]
                for each in parameters
                if each.default is each.empty and each.kind is not each.VAR_KEYWORD
            }
            name = wrong.name
            if wrong.kind is wrong.VAR_KEYWORD:
                name = "max_split_size"
            given[name] = "Wrong()"
            yield f"{call}({', '.join(f'{key}={value}' for key, value in given.items())})", name


VALUES = {
    "tms.region('')": "tag must not be empty; leave it out for 'default'",
    "tms.region('\\ud800')": "tag must be text of UTF-8",
    "tms.region('a' * 9999, backup='b' * 9999)": r"not 'b{30,60}\.\.\.b{30,60}'$",
    "tms.pause('')": "tag must not be empty; leave it out for all tags",
    "tms.resume(['a', ''])": "tag must not be empty; leave it out for all tags",
    "tms.pause('a', discard='')": "discard must not be empty; leave it out for no tag",
    "tms.pause('a', discard=0)": "discard must be a str",
    "tms.kept('\\ud800')": "name must be text of UTF-8",
    "tms.pool('\\ud800')": "kind must be text of UTF-8",
    "tms.set_disk_backup_dir('\\ud800')": "path must name a directory, not",
    "tms.live('', [True])": "tensors must be a CUDA tensor or a sequence of them, not ''",
    "tms.region('a\\0')": "tag must not contain a NUL",
    "tms.region(backup='hots')": "backup must be None .*, not 'hots'",
    "tms.region(backup='disk', incremental=True)": "incremental=True needs backup='host'",
    "tms.pause(['a', 1])": "tag must be a str such as 'weights', not int",
    "tms.pause('a', discard='b')": "discard has tags that tag does not name: b",
    "tms.pause('a', discard=['a', 1])": "discard must be a str",
    "tms.pause('a', everything=True)": "everything=True .* leave tag and discard out",
    "tms.pause(everything=1)": "everything must be True or False, not 1",
    "tms.pause(timeout=-1)": "timeout must be a number of seconds, 0 or more, not -1",
    "tms.pause(timeout=True)": "timeout must be a number of seconds, 0 or more, not True",
    "tms.resume(wait='1')": "wait must be a number of seconds, 0 or more, not '1'",
    "tms.resume(wait=float('nan'))": "wait must be a number of seconds, 0 or more, not nan",
    "tms.resume(order='ab')": "order must be a list of tensors and modules, not 'ab'",
    "tms.resume(order=['a'])": "order has 'a', which is no tensor and no module",
    "tms.configure(resume_wait=-1)": "resume_wait must be a number of seconds, 0 or more, not -1",
    "tms.prepare('a', wait=1.5)": "wait must be True or False, not 1.5",
    "tms.set_disk_backup_dir('')": "path must name a directory, not ''",
    "tms.kept('')": "name must have 1 to 255 bytes",
    "tms.Kept(None, 'a').publish([])": r"source must be a torch.nn.Module or a dict .*, not \[\]",
    "tms.kept('a' * 256)": "name must have 1 to 255 bytes",
    "tms.pool('buddy', device=-1)": "device must be the ordinal of a GPU or None, not -1",
    "tms.pool('buddy', memory='a,b')": "memory='a,b': a setting must not contain a comma",
    "tms.Pool(None, '', None).malloc(-1)": "size must be 0 or more, and below 2.*, not -1",
    "tms.Pool(None, '', None).malloc(1 << 64)": "size must be",
    "tms.Pool(None, '', None).malloc(1.5)": "size must be 0 or more, and below 2.*, not 1.5",
    "tms.Pool(None, '', None).free(True)": "address must be what malloc returned, not True",
    "tms.live([Tensor(), 1], [True])": "tensors must be a CUDA tensor or a sequence of them",
    "tms.live(Tensor(), 'yes')": "parts must be a mask of bools, or pairs .*, not 'yes'",
    "tms.live(Tensor(), [1])": "parts has 1, which is no pair",
    "tms.live(Tensor(), [(0, 33)])": r"parts has \(0, 33\), which is no pair",
    "tms.live(Tensor(), [(0, 1.5)])": r"parts has \(0, 1.5\), which is no pair",
    "tms.live(Tensor(), [True] * 3)": "parts: a mask of 3 blocks does not divide dimension 0",
    "tms.live(Tensor(), [True], dim=2)": "dim must be a dimension of a tensor that has 2, not 2",
    "tms.distributed.pause(timeout=0)": "timeout must be a number of seconds above 0, not 0",
    "tms.distributed.paused(timeout=float('inf'))": "timeout must be a number of seconds above 0",
    "tms.ray.pause([])": "actors must have at least one actor",
    "tms.ray.pause([Actor()], timeout=-1)": "timeout must be a number of seconds above 0",
    "tms.ray.lend(from_=[Actor()], to=[])": "to must have at least one actor",
}
"""Words of what calls with arguments of the right type, but a wrong value, say."""

CASES = {**{call: rf"\b{name}\b.*(the wrong thing|Wrong)" for call, name in generated()}, **VALUES}


@pytest.fixture(scope="module")
def said() -> dict[str, tuple[str, str]]:
    """Each call's error, and its text."""
    hidden = ("LD_PRELOAD", "LD_LIBRARY_PATH")
    done = subprocess.run(
        [sys.executable, "-c", HEAD],
        input=json.dumps([*CASES]),
        env={name: value for name, value in os.environ.items() if name not in hidden},
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, tuple[str, str]] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("call", CASES)
def test_refused(call: str, said: dict[str, tuple[str, str]]) -> None:
    kind, text = said[call]
    assert kind in ("TypeError", "ValueError"), f"{kind}: {text}"
    with pytest.raises(ValueError, match=CASES[call]):
        raise ValueError(text)
