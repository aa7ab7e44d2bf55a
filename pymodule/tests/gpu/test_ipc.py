"""Ranks that read each other's memory in a captured graph, as custom all-reduces do, and pause.

On two GPUs with access to each other, or on one. Prints its figures as JSON (`pytest -s`).
"""

from __future__ import annotations

import json
import os

import pytest
from device import output, reaching, torch_on_gpu
from group import last_line, meeting, started, with_programs

torch = torch_on_gpu()
if not hasattr(torch.cuda, "_compile_kernel"):
    pytest.skip("this PyTorch compiles no kernels", allow_module_level=True)

RANKS = 2
CYCLES = int(os.environ.get("TESTS_IPC_CYCLES", "100"))

RANK = """
import ctypes, json, os, signal, time
import torch, torch.distributed as dist
import tms
from pausing import all_here, count, cycles, load, pauses, rank, refused_alone
cuda = ctypes.CDLL(None)  # the preloaded library's functions
COUNT = 2 << 20  # numbers of 4 bytes in a buffer

class Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]

def check(code):
    assert code == 0, (code, load().last_error)

def shared(address):
    # As vLLM and SGLang register buffers of graphs: the allocation's handle, and where in it.
    base, handle = ctypes.c_uint64(), Handle()
    RANGE_START = 11
    check(cuda.cuPointerGetAttribute(ctypes.byref(base), RANGE_START, ctypes.c_uint64(address)))
    check(cuda.cudaIpcGetMemHandle(ctypes.byref(handle), ctypes.c_void_p(base.value)))
    return bytes(handle).hex(), address - base.value

def opened(handle, offset):
    pointer, given = ctypes.c_void_p(), Handle.from_buffer_copy(bytes.fromhex(handle))
    check(cuda.cudaIpcOpenMemHandle(ctypes.byref(pointer), given, 1))
    return pointer.value + offset

def mapped(address):
    # Bytes of the mapping that it lies in.
    size = ctypes.c_uint64()
    MAPPING_SIZE = 18
    check(cuda.cuPointerGetAttribute(ctypes.byref(size), MAPPING_SIZE, ctypes.c_uint64(address)))
    return size.value

def of_all(address):
    # The addresses of all ranks' buffers here.
    handles = [None] * count
    dist.all_gather_object(handles, shared(address))
    return [address if other == rank else opened(*handles[other]) for other in range(count)]

class Raw:  # memory of cudaMalloc as a tensor
    def __init__(self, address):
        self.__cuda_array_interface__ = {
            "shape": (COUNT,), "typestr": "<f4", "data": (address, False), "version": 3,
        }

with tms.region("communication", backup="host"):
    pointer = ctypes.c_void_p()
    check(cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(COUNT * 4)))
    pad = torch.empty(1 << 19, device="cuda")  # so that the next does not begin its segment
    tensor = torch.empty(COUNT, device="cuda")
torch.zeros(1, device="cuda")
tms.pause("communication")
tms.resume("communication")  # from now on they lie in one extent
assert mapped(pointer.value) > COUNT * 4
raw = torch.as_tensor(Raw(pointer.value), device="cuda")
assert raw.data_ptr() == pointer.value
assert shared(tensor.data_ptr())[1] > 0

kernel = torch.cuda._compile_kernel('''
extern "C" __global__ void add_up(const unsigned long long *ranks, float *out, int count, int n)
{
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
		float sum = 0;
		for (int r = 0; r < count; r++)
			sum += ((const volatile float *)ranks[r])[i];
		out[i] = sum;
	}
}
''', "add_up")

buffers = [
    torch.tensor(of_all(each.data_ptr()), dtype=torch.int64, device="cuda")
    for each in (raw, tensor)
]
sums = [torch.zeros(COUNT, device="cuda") for _ in buffers]

def add_up():
    for ranks, out in zip(buffers, sums):
        kernel((256, 1, 1), (256, 1, 1), (ranks, out, count, COUNT))

add_up()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    add_up()

def right(cycle):
    raw.fill_(rank + 1 + cycle)
    tensor.fill_(10 * (rank + 1) + cycle)
    for out in sums:
        out.zero_()
    all_here()
    graph.replay()
    all_here()
    own = sum(r + 1 + cycle for r in range(count)), sum(10 * (r + 1) + cycle for r in range(count))
    return all(bool((out == value).all()) for out, value in zip(sums, own))

def kept(cycle):
    return bool((raw == rank + 1 + cycle).all()) and bool((tensor == 10 * (rank + 1) + cycle).all())

others = int(buffers[0][1 - rank])
assert mapped(others) > COUNT * 4
assert right(-1)
figures = pauses("communication", right, kept)
assert figures["bytes"] > COUNT * 8, figures
assert mapped(raw.data_ptr()) == mapped(others) == COUNT * 4  # and stand alone
alone = refused_alone("communication")
assert right(cycles)
pids = [None] * count
dist.all_gather_object(pids, os.getpid())
if rank == 0:
    assert f"process {pids[1]}," in alone, alone
    print(json.dumps(figures), flush=True)
all_here()
if rank == 1:  # with the other's memory mapped
    os.kill(os.getpid(), signal.SIGKILL)
while os.path.exists(f"/proc/{pids[1]}") and open(f"/proc/{pids[1]}/stat").read().split()[2] != "Z":
    time.sleep(0.01)
tms.pause("communication")
os._exit(0)
"""


@pytest.mark.several_gpus
def test_a_hundred_pauses_between_all_reduces() -> None:
    devices = 1
    if torch.cuda.device_count() > 1 and torch.cuda.can_device_access_peer(0, 1):
        devices = RANKS
    arguments = [*(str(each) for each in (RANKS, devices, CYCLES)), meeting()]
    with started(RANKS, ["-c", RANK], *arguments, **reaching(), **with_programs()) as ranks:
        figures = last_line(ranks[0], within=180)
    assert json.loads(figures)["cycles"] == CYCLES
    print(figures)


OWNER = """
import subprocess, sys
import torch, tms
import torch.multiprocessing
from multiprocessing.reduction import ForkingPickler
from tms._library import load

COUNT = 5 << 20  # numbers of 4 bytes: a block of PyTorch's each
with tms.region("weights", backup="host"):
    parts = [torch.full((COUNT,), i, dtype=torch.int32, device="cuda") for i in range(4)]
torch.cuda.synchronize()
tms.pause("weights")
tms.resume("weights")  # they share an extent
reader = subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
)

def ask(line):
    reader.stdin.write(line + "\\n")
    reader.stdin.flush()
    return reader.stdout.readline().strip()

def change(value):
    parts[1].fill_(value)
    torch.cuda.synchronize()

assert ask("open " + bytes(ForkingPickler.dumps(parts[1])).hex()) == "1"
try:
    load().pause("weights", 0.2)
except tms.TmsError as error:
    assert f"process {reader.pid}," in str(error), error
else:
    raise AssertionError("a tensor that another process has was paused")
for cycle in range(10):
    change(100 + cycle)
    assert ask("read") == str(100 + cycle)
    assert ask("pause") == "done"
    before = torch.cuda.mem_get_info()[0]
    assert tms.pause("weights") >= 4 * COUNT * 4
    assert torch.cuda.mem_get_info()[0] - before >= 4 * COUNT * 4
    tms.resume("weights")
    assert ask("resume") == str(100 + cycle)
    assert [int(part[-1]) for part in parts] == [0, 100 + cycle, 2, 3]
assert ask("close") == "done"
tms.pause("weights")
tms.resume("weights")
reader.communicate(timeout=60)
assert reader.returncode == 0
print("done")
"""

READER = """
import sys
import torch, tms
import torch.multiprocessing
from multiprocessing.reduction import ForkingPickler

for line in sys.stdin:
    what, _, rest = line.strip().partition(" ")
    if what == "open":
        tensor = ForkingPickler.loads(bytes.fromhex(rest))
    elif what == "pause":
        tms.pause()
    elif what == "resume":
        tms.resume()
    elif what == "close":
        del tensor
    print(int(tensor[-1]) if what not in ("pause", "close") else "done", flush=True)
"""


def test_a_tensor_in_another_process() -> None:
    """As torch.multiprocessing sends it, from a region."""
    assert output(OWNER, READER, **reaching()) == "done\n"
