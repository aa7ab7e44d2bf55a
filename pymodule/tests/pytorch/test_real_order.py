"""PyTorch's own modules wait for their memory, on the simulator, by scripts/torch-simulator.sh."""

from __future__ import annotations

import pytest
from simulator import BUILD
from test_real_pools import LIBRARIES, output

LAYERS = """
import copy, ctypes, pickle
driver = ctypes.CDLL("libcuda.so.1")
plain = torch.nn.Module.__call__
class Layer(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.weight = torch.nn.Parameter(full(32, value), requires_grad=False)
        self.value = value
    def forward(self, ran):
        assert holds(self.weight, self.value)
        ran.append(self.value)
        return ran
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(map(Layer, (3, 2, 1)))
        self.register_buffer("table", full(32, 9))
    def forward(self, ran):
        assert holds(self.table, 9)
        for layer in reversed(self.layers):
            ran = layer(ran)
        return ran
def paused(model):
    with tms.first_runs(model) as order: model([])
    tms.pause("weights")
    return order
def stall(copies): driver.cudasim_fail(b"cuMemcpyHtoDAsync", copies + 1, -2)
"""

RUNS = """
with tms.region("weights", backup="host"):
    model = Model()
other = full(1, 5)
order = paused(model)
assert order == [model, *reversed(model.layers)], order
assert torch.nn.Module.__call__ is plain
stall(2)  # at the second layer to run
tms.resume("weights", order=order)
ran = []
runs = threading.Thread(target=model, args=(ran,))
reads = threading.Thread(target=lambda: ran.append(holds(other, 5)))
runs.start()
while ran != [1]: assert runs.is_alive()
reads.start()
assert ran == [1], ran
driver.cudasim_clear_failures()
runs.join(), reads.join()
assert sorted(ran) == [True, 1, 2, 3], ran
assert model([]) == [1, 2, 3]
assert torch.nn.Module.__call__ is plain
"""

BLOCKS = """
class Odd(Layer):  # of 3 MiB and a byte
    def __init__(self, value):
        super().__init__(value)
        weight = torch.empty((3 << 20) + 1, dtype=torch.uint8, device="cuda")
        self.weight = torch.nn.Parameter(weight, requires_grad=False)
        self.weight.copy_(torch.full_like(self.weight, value, device="cpu"))
with tms.region("weights", backup="host"):
    model = Model()
    model.layers = torch.nn.ModuleList(map(Odd, range(20, 0, -1)))
    unused = full(64, 0)
    del unused
order = paused(model)
first = tms.resume("weights", order=order)
assert first == 32 * MiB, first / MiB  # the table
assert len(model([])) == 20
with tms.region("weights", backup="host"): other = full(1, 4)  # in a segment of the layers
tms.pause("weights")
# What no step names comes first, with its segment.
assert tms.resume("weights", order=order) > first
assert holds(other, 4) and len(model([])) == 20
"""


FREE = """
made, inside, go = [], threading.Event(), threading.Event()
class First(Layer):
    def forward(self, ran):
        if go.is_set(): made.append(full(48, 7))
        return super().forward(ran)
def runs():
    global model
    with tms.region("weights", backup="host"):
        model = Model()
        model.layers[2] = First(1)
        unused = full(64, 0)
        del unused
        inside.set()
        go.wait()
        assert model([]) == [1, 2, 3]
thread = threading.Thread(target=runs)
thread.start()
inside.wait()
order = paused(model)
stall(2)
tms.resume("weights", order=order)
go.set()
while not made: assert thread.is_alive()  # it got other memory than what is not back
driver.cudasim_clear_failures()
thread.join()
assert holds(made[0], 7)
"""

STEPS = """
class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.nothing = Layer(1), Layer(2), torch.nn.Identity()
    def forward(self, ran): return self.nothing(self.second(self.first(ran)))
with tms.region("weights", backup="host"): model, last = Both(), Layer(3)
c, steps, inside = tms._library.load().c, [], 0
def enter(number, step, real=c.tms_order_enter):
    global inside
    code = real(number, step)
    steps.append(step)
    inside += code == 0
    return code
def leave(number, real=c.tms_order_leave):
    global inside
    real(number)
    inside -= 1
c.tms_order_enter, c.tms_order_leave = enter, leave
def steps_of(call, order):
    # Runs while the last layer is on its way.
    order = [*order, last]
    tms.pause("weights")
    stall(2)
    tms.resume("weights", order=order)
    steps.clear()
    try:
        call()
    finally:
        assert inside == 0
        driver.cudasim_clear_failures()
        tms.resume("weights")
        assert holds(last.weight, 3)
    return [*steps]
"""

COPIES = """
def call():
    copies = copy.deepcopy(model.nothing), pickle.loads(pickle.dumps(model.nothing))
    assert [each(4) for each in copies] == [4, 4]
    assert {*map(str, model.nothing.__dict__)} == {*map(str, torch.nn.Identity().__dict__)}
    for each in *copies, *model.modules():
        assert not each._forward_pre_hooks and not each._forward_hooks
assert steps_of(call, paused(model)) == []
"""

ERRORS = """
class Generates(torch.nn.Module):
    def forward(self, ran):
        yield from model.second(ran)
def call():
    for error in KeyboardInterrupt, ValueError, GeneratorExit:
        def forward(ran): raise error
        model.second.forward = forward
        try: model([])
        except error: assert inside == 0
        else: raise SystemExit("no error")
        del model.second.forward
        with torch.inference_mode(): assert model([]) == [1, 2]
        generates = Generates()([])
        assert inside == 0
        assert [*generates] == [2]
assert steps_of(call, paused(model)) == 3 * [0, 1, 2, 0, 1, 2, 2, 2]
"""

COMPILED = """
compiled = []
def backend(graph, examples):
    compiled.append(graph)
    return graph.forward
class Scale(torch.nn.Module):
    def forward(self, x): return x * 2
scale = torch.compile(Scale(), backend=backend)
x = torch.ones(4)
scale(x)
order = paused(model)
assert order == [model, model.first, model.second, model.nothing]
before = len(compiled)
assert steps_of(lambda: scale(x), order) == []
scale(x)
assert len(compiled) == before  # the order makes nothing compile again
one = torch.compile(model, backend=backend)
assert steps_of(lambda: one([]), order)[0] == 2  # the last step in it
model.compile(backend=backend)
assert steps_of(lambda: model([]), order)[0] == 2
model._compiled_call_impl = None
with tms.first_runs(one) as order: one([])
assert order[0] is one
assert one([]) == [1, 2]
several = torch.nn.DataParallel(model, device_ids=[0])
assert steps_of(lambda: several([]), paused(model)) == [2, 0, 1, 2, 2]
"""

PROGRAMS = {
    "layers run": RUNS,
    "blocks": BLOCKS,
    "free": FREE,
    "copies": STEPS + COPIES,
    "errors": STEPS + ERRORS,
    "compiled": STEPS + COMPILED,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_modules_wait_for_their_memory(program: str) -> None:
    ours = [str(BUILD / "lib" / name) for name in ("libtms.so", "libtms_reach.so")]
    output(LAYERS + program, LD_PRELOAD=":".join(ours + LIBRARIES))
