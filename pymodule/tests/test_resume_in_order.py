"""A resume in the order in which modules first ran. In a child, because the gate is preloaded."""

from __future__ import annotations

import children
import pytest
from simulator import BUILD

MODULES = """
import ctypes, os, sys, threading, time, types
import cuda, tms
from cuda import MiB

class Storage:
    def __init__(self, pointer, size): self.pointer, self.size = pointer, size
    def data_ptr(self): return self.pointer
    def nbytes(self): return self.size

class Tensor:
    is_cuda = True
    def __init__(self, size=4 * MiB):
        with tms.region("t", backup="host"):
            self.pointer = cuda.malloc(size)
        self.contents = os.urandom(size)
        cuda.write(self.pointer, self.contents)
        self.storage = Storage(self.pointer, size)
    def untyped_storage(self): return self.storage
    def is_back(self): return cuda.read(self.pointer, len(self.contents)) == self.contents

class Base:  # torch.nn.Module
    def __call__(self, ran): self.forward(ran)
plain = Base.__call__
sys.modules["torch"] = types.SimpleNamespace(nn=types.SimpleNamespace(Module=Base))

class Module(Base):
    def __init__(self, *children, tensors=1):
        self.own, self.inner = [Tensor() for _ in range(tensors)], children
    def parameters(self, recurse=True): assert not recurse; return iter(self.own[:1])
    def buffers(self, recurse=True): assert not recurse; return iter(self.own[1:])
    def children(self): return iter(self.inner)
    def modules(self):
        yield self
        for child in self.inner: yield from child.modules()
    def forward(self, ran):
        assert all(tensor.is_back() for tensor in self.own)
        ran.append(self)
        for child in self.inner: child(ran)

driver = ctypes.CDLL("libcuda.so.1")
driver.cudasim_failures_fired.restype = ctypes.c_uint64
before = 0
def stand_behind(copies):
    global before
    before = driver.cudasim_failures_fired()
    driver.cudasim_fail(b"cuMemcpyHtoDAsync", copies + 1, -2)
def stands():
    while driver.cudasim_failures_fired() == before: time.sleep(0.001)
def go_on(): driver.cudasim_fail(b"cuMemGetInfo", 1, 0)
def let_one_come(): stands(), stand_behind(0), go_on()
"""

RUNS = """
first, last, unused = Module(), Module(tensors=2), Module()
layer = Module(last, tensors=0)
class Model(Module):
    def forward(self, ran):
        ran.append(self)
        first(ran); layer(ran)
model = Model(layer, first, unused, tensors=0)
other = Tensor()
with tms.first_runs(model) as order:
    model([])
assert order == [model, first, layer, last], order
assert Base.__call__ is plain
tms.pause("t")
stand_behind(2)  # what is in no module, and what has not run and so belongs to the model
assert tms.resume("t", order=order) == 8 * MiB
ran = []
runs = threading.Thread(target=model, args=(ran,))
reads = threading.Thread(target=lambda: ran.append(other.is_back()))
runs.start(), reads.start()
let_one_come()  # first
while first not in ran: time.sleep(0.001)
let_one_come()
assert last not in ran and True not in ran, ran
driver.cudasim_clear_failures()
runs.join(), reads.join()
assert {*map(id, ran)} == {*map(id, (model, first, layer, last, True))}, ran
model([])
assert Base.__call__ is plain
assert unused.own[0].is_back() and other.is_back()
"""

FAILS = """
first, last = Module(), Module()
tms.pause("t")
stand_behind(1)
tms.resume("t", order=[first, last])
stands(), driver.cudasim_fail(b"cuMemSetAccess", 1, 2), go_on()
for _ in range(2):
    try:
        last([])
    except tms.OutOfMemoryError as error:
        assert "was to bring memory back in an order, and has failed" in str(error), error
    else:
        raise SystemExit("it has run")
driver.cudasim_clear_failures()
tms.resume("t")
first([]), last([])
assert Base.__call__ is plain
"""

PAUSED = """
from tms import _control
first, last = Module(), Module()
def paused(): return sum(tag["paused_bytes"] for d in tms.stats()["devices"] for tag in d["tags"])
def pause(tag, real=_control.pause):
    driver.cudasim_clear_failures()
    return real(tag)
_control.pause = pause
for tag in "t", None:
    tms.pause("t")
    stand_behind(1)
    tms.resume("t", order=[first, last])
    stands()
    with tms.paused(tag):
        assert paused() == 8 * MiB
    assert paused() == 0
    first([]), last([])
"""

TENSORS = """
first, last = Tensor(), Tensor()
class Elsewhere:
    is_cuda = False
    def untyped_storage(self): raise AssertionError("it is not on a GPU")
class Wrapped(Elsewhere):
    is_cuda = True
    def untyped_storage(self): raise NotImplementedError
tms.pause("t")
tms.resume("t", order=[Elsewhere(), first, Wrapped(), last])
assert last.is_back() and first.is_back()
tms.resume("t", order=[])
"""

NEITHER = """
def refuses(call, given):
    try:
        call(given)
    except TypeError as error:
        assert "odule" in str(error), error
    else:
        raise SystemExit(f"{given} was taken")
for given in Storage(1, 2), Module, Tensor:
    refuses(lambda given: tms.resume("t", order=[given]), given)
    refuses(tms.first_runs, given)
"""


PROGRAMS = {"runs": RUNS, "fails": FAILS, "paused": PAUSED, "tensors": TENSORS}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_modules_wait_for_their_memory(program: str) -> None:
    both = f"{BUILD}/lib/libtms.so {BUILD}/lib/libtms_reach.so"
    children.output(MODULES + program, LD_PRELOAD=both)


def test_what_is_neither_tensor_nor_module_is_refused() -> None:
    children.output(MODULES + NEITHER)


def test_without_a_gate_all_is_back_at_once() -> None:
    done = children.run(MODULES + TENSORS)
    assert done.returncode == 0, done.stderr
    assert "not in the order that it was given" in done.stderr
