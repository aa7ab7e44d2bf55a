"""PyTorch's own modules wait for their memory, on the simulator, by scripts/torch-simulator.sh."""

from __future__ import annotations

from simulator import BUILD
from test_real_pools import LIBRARIES, output

PROGRAM = """
import ctypes
driver = ctypes.CDLL("libcuda.so.1")
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
with tms.region("weights", backup="host"):
    model = Model()
other = full(1, 5)
with tms.first_runs(model) as order:
    model([])
assert order == [model, *reversed(model.layers)], order
tms.pause("weights")
driver.cudasim_fail(b"cuMemcpyHtoDAsync", 3, -2)  # of the second layer to run
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
assert not any(each._forward_pre_hooks or each._forward_hooks for each in model.modules())
"""


def test_layers_run_while_later_ones_come_back() -> None:
    ours = [str(BUILD / "lib" / name) for name in ("libtms.so", "libtms_reach.so")]
    output(PROGRAM, LD_PRELOAD=":".join(ours + LIBRARIES))
