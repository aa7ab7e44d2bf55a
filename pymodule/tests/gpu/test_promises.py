"""What clients of torch_memory_saver measure when a call returns: host and device memory, files.

No test sleeps before it looks: the figures are those of that moment. Most run in a process of their
own, in both hook modes, so that no other test is in them.
"""

from __future__ import annotations

import ctypes
import os
import textwrap
from functools import partial
from pathlib import Path
from typing import Any, Callable

import pytest
from device import MiB, holds, output, torch_on_gpu

import tms
from torch_memory_saver import torch_memory_saver as saver

torch = torch_on_gpu()

SIZE = 256 * MiB
LARGE = 8 << 30

PRELUDE = """
import ctypes, os, sys, time
import torch, tms
from torch_memory_saver import torch_memory_saver as saver

MODE, SIZE, MiB = os.environ["MODE"], int(os.environ["SIZE"]), 1 << 20
saver.hook_mode = MODE
saver._ensure_initialized()
cdll = saver._impl._binary_wrapper.cdll

def full(value, size=SIZE):
    return torch.full((size,), value, dtype=torch.uint8, device="cuda")

def holds(tensor, value):
    return bool((tensor == value).all())

def used():
    '''Bytes of the device; what PyTorch caches stays where it is.'''
    free, total = torch.cuda.mem_get_info()
    return total - free

def resident():
    '''Bytes of anonymous host memory that the process holds, pinned ones included.'''
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return int(lines.get("RssAnon", lines["VmRSS"]).split()[0]) << 10

def copy_of(pointer, size=SIZE):
    '''The address of the host copy of the contents, None: there is none.'''
    first = ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint8))
    copy = cdll.tms_get_cpu_backup_pointer(first, size)
    return ctypes.addressof(copy.contents) if copy else None

def registered(address):
    '''Whether host memory at the address is known to CUDA.'''
    known = cdll.cudaHostGetFlags(ctypes.byref(ctypes.c_uint()), ctypes.c_void_p(address)) == 0
    cdll.cudaGetLastError()
    return known

def allocate(size=SIZE):
    '''Memory without PyTorch's cache, as the hook mode has it.'''
    if MODE == "torch":
        return cdll.tms_torch_malloc(size, 0, None)
    pointer = ctypes.c_void_p()
    assert cdll.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    return pointer.value

def release(pointer, size=SIZE):
    if MODE == "torch":
        cdll.tms_torch_free(pointer, size, 0, None)
    else:
        assert cdll.cudaFree(ctypes.c_void_p(pointer)) == 0

warm = full(1, 1024)
assert holds(warm, 1)
"""


def in_one_mode(
    mode: str, program: str, *arguments: str, size: int = SIZE, **variables: str
) -> None:
    """Runs PRELUDE and the program in a new process; it must succeed."""
    if mode == "torch":
        variables["LD_PRELOAD"] = ""
    code = PRELUDE + textwrap.dedent(program) + '\nprint("done")\n'
    assert output(code, *arguments, MODE=mode, SIZE=str(size), **variables) == "done\n"


InMode = Callable[..., None]


@pytest.fixture(params=["preload", "torch"])
def in_mode(request: pytest.FixtureRequest) -> InMode:
    """`in_one_mode`, in each of the modes."""
    return partial(in_one_mode, request.param)


def test_host_memory_after_resume(in_mode: InMode) -> None:
    """Memory that is not retained is back with the system, and no longer registered with CUDA."""
    in_mode("""
        for backend in ("pinned", "mmap"):
            with saver.region("t", enable_cpu_backup=True, cpu_backup_backend=backend):
                tensor = full(7)
            assert holds(tensor, 7)
            for cycle in range(3):
                before = resident()
                saver.pause("t")
                address = copy_of(tensor.data_ptr())
                assert registered(address)
                held = resident() - before
                saver.resume("t")
                left, known = resident() - before, registered(address)
                assert held >= SIZE * 3 // 4, (backend, cycle, held)
                assert left <= SIZE // 4, (backend, cycle, left)
                assert not known, (backend, cycle)
                assert copy_of(tensor.data_ptr()) is None
                assert holds(tensor, 7)
            del tensor
    """)


def test_host_memory_after_a_free(in_mode: InMode) -> None:
    """A free of memory that is paused, or active with its copy retained."""
    in_mode("""
        for backend, retained in ((b, r) for b in ("pinned", "mmap") for r in (False, True)):
            for cycle in range(3):
                with saver.region("t", enable_cpu_backup=True, cpu_backup_backend=backend):
                    pointer = allocate()
                saver.retain_cpu_backup = retained
                before = resident()
                saver.pause("t")
                address = copy_of(pointer)
                if retained:
                    saver.resume("t")
                    assert copy_of(pointer) == address
                assert registered(address)
                held = resident() - before
                release(pointer)
                left, known = resident() - before, registered(address)
                assert held >= SIZE * 3 // 4, (backend, retained, cycle, held)
                assert left <= SIZE // 4, (backend, retained, cycle, left)
                assert not known, (backend, retained, cycle)
    """)


def test_backend_from_the_environment() -> None:
    """With all memory in a region from the start, and without a call that names a backend."""
    in_one_mode(
        "preload",
        """
        assert cdll.tms_get_cpu_backup_backend() == b"mmap"
        tensor = full(7)
        before = resident()
        saver.pause()
        assert resident() - before >= SIZE * 3 // 4, resident() - before
        saver.resume()
        left = resident() - before
        assert left <= SIZE // 4, left
        assert holds(tensor, 7)
        """,
        TMS_INIT_ENABLE="1",
        TMS_INIT_ENABLE_CPU_BACKUP="1",
        TMS_INIT_CPU_BACKUP_BACKEND="mmap",
    )


def test_waiting_for_host_memory_is_bounded() -> None:
    """With "mmap" a large resume waits for it; otherwise for a tenth of its own time, then goes
    on."""
    in_one_mode(
        "preload",
        """
        def resumes(tag, retain):
            '''The shortest of three resumes, in seconds, and what each left in host memory.'''
            saver.retain_cpu_backup = retain
            times, left = [], []
            for _ in range(3):
                before = resident()
                saver.pause(tag)
                begin = time.perf_counter()
                saver.resume(tag)
                times.append(time.perf_counter() - begin)
                left.append(resident() - before)
                deadline = time.perf_counter() + 10
                while not retain and resident() - before > SIZE // 8:
                    assert time.perf_counter() < deadline, resident() - before
                    time.sleep(0.01)
            return min(times), left

        for backend in ("pinned", "mmap"):
            with saver.region(backend, enable_cpu_backup=True, cpu_backup_backend=backend):
                tensor = full(7)
            kept, _ = resumes(backend, True)
            took, left = resumes(backend, False)
            if backend == "mmap":
                assert max(left) <= SIZE // 8, left
            else:
                assert took <= kept * 1.3 + 0.03, (took, kept)
            assert holds(tensor, 7)
            del tensor
            tms.empty_cache()
        """,
        size=LARGE,
    )


def test_device_memory_after_resume(in_mode: InMode, tmp_path: Path) -> None:
    """At most 1 MiB more is in use than before the pause, unless another process takes some."""
    in_mode(
        """
        saver.set_disk_backup_dir(sys.argv[1])
        sizes = [SIZE, SIZE // 3, 1000, 1 << 20, SIZE // 8 + 4096, 2 << 20]
        for backup in (
            {},
            {"enable_cpu_backup": True},
            {"enable_cpu_backup": True, "cpu_backup_backend": "mmap"},
            {"enable_disk_backup": True},
        ):
            with saver.region("t", **backup):
                tensors = [full(number, size) for number, size in enumerate(sizes)]
            assert all(holds(tensor, number) for number, tensor in enumerate(tensors))
            torch.cuda.synchronize()
            good, figures = 0, []
            while good < 4:
                before = used()
                saver.pause("t")
                paused = used()
                saver.resume("t")
                after = used()
                good += before - paused >= sum(sizes) and after - before <= MiB
                figures.append((before, paused, after))
                assert len(figures) < 40, (backup, figures)
                if backup:
                    assert all(holds(tensor, number) for number, tensor in enumerate(tensors))
            del tensors
        """,
        str(tmp_path),
    )


def test_disk_backup(in_mode: InMode, tmp_path: Path) -> None:
    """Files exist during a pause, equally large each time; a resume or a free ends them."""
    in_mode(
        """
        import contextlib, glob
        directory = sys.argv[1]
        saver.set_disk_backup_dir(directory)

        def stored():  # in files without a name, which a thread of this process keeps
            assert os.listdir(directory) == []
            found = 0
            for descriptor in glob.glob("/proc/self/task/*/fd/*"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink(descriptor).startswith(directory + "/"):
                        found += os.stat(descriptor).st_size
            return found

        def gone(when):
            deadline = time.perf_counter() + 10  # it takes a disk its time
            while stored():
                assert time.perf_counter() < deadline, when
                time.sleep(0.001)

        with saver.region("t", enable_disk_backup=True):
            large, small = full(1, SIZE + 12345), full(2, 7)
        with saver.region("t"):
            without = full(3)
        sizes = set()
        for cycle in range(3):
            assert holds(large, 1 + cycle) and holds(small, 2), cycle
            saver.pause("t")
            assert saver.get_cpu_backup(small) is None
            assert stored() >= SIZE + 12345 + 7
            sizes.add(stored())
            other = full(4)
            assert holds(other, 4)
            del other
            saver.resume("t")
            gone(cycle)
            assert holds(large, 1 + cycle) and holds(small, 2), cycle
            without.fill_(cycle)
            large.add_(1)
        assert len(sizes) == 1, sizes
        saver.pause("t")
        assert stored() in sizes
        del large, small
        tms.empty_cache()
        gone("freed")
        saver.resume("t")
        """,
        str(tmp_path),
        TMS_DISK_BACKUP_CHUNK_MB="1",
    )


def test_tags_in_any_order(in_mode: InMode) -> None:
    in_mode(
        """
        with saver.region("weights", enable_cpu_backup=True):
            weights = full(1)
        with saver.region("cache"):
            cache = full(2, 2 * SIZE)
        assert holds(weights, 1) and holds(cache, 2)
        addresses = weights.data_ptr(), cache.data_ptr()
        all_active = used()

        def less(expected):
            assert abs(all_active - used() - expected) <= 8 * MiB, (all_active - used(), expected)

        for first, second in (("weights", "cache"), ("cache", "weights")):
            sizes = {"weights": SIZE, "cache": 2 * SIZE}
            saver.pause(first)
            less(sizes[first])
            saver.pause(first)  # again: nothing to do
            less(sizes[first])
            saver.pause(second)
            less(3 * SIZE)
            saver.resume(first)
            less(sizes[second])
            saver.resume(first)
            saver.resume("unknown")
            less(sizes[second])
            saver.resume()
            less(0)
            saver.pause()
            less(3 * SIZE)
            saver.resume(second)
            less(sizes[first])
            saver.resume(first)
            less(0)
            assert holds(weights, 1)
            cache.fill_(3)
        assert (weights.data_ptr(), cache.data_ptr()) == addresses
    """
    )


def test_retained_copy(in_mode: InMode) -> None:
    """The copy keeps its address and gets each pause's contents; the setting counts at a resume."""
    in_mode("""
        for backend in ("pinned", "mmap"):
            with saver.region("t", enable_cpu_backup=True, cpu_backup_backend=backend):
                tensor = full(1)
            with saver.region("other", enable_cpu_backup=True):
                other = full(9)

            def copy():
                return saver.get_cpu_backup(tensor, zero_copy=True)

            saver.pause("t")
            address = copy_of(tensor.data_ptr())
            saver.retain_cpu_backup = True
            saver.resume("t")
            assert copy_of(tensor.data_ptr()) == address and holds(copy(), 1)
            saver.retain_cpu_backup = False
            assert copy_of(tensor.data_ptr()) == address and holds(copy(), 1)
            tensor.fill_(2)
            saver.pause("t")
            assert copy_of(tensor.data_ptr()) == address and holds(copy(), 2)
            saver.retain_cpu_backup = True
            saver.resume("t")
            assert holds(tensor, 2) and holds(copy(), 2)
            tensor.fill_(3)
            saver.pause("t")
            assert copy_of(tensor.data_ptr()) == address and holds(copy(), 3)
            saver.retain_cpu_backup = False
            saver.resume("t")
            assert copy() is None and holds(tensor, 3)
            assert not registered(address)
            assert saver.get_cpu_backup(other) is None and holds(other, 9)
            del tensor, other
    """)


@pytest.mark.parametrize("backend", ["pinned", "mmap"])
def test_contents_are_there_for_any_stream(backend: Any, tag: str) -> None:
    """When resume returns, a stream that does not wait for the default one sees the contents."""
    with saver.region(tag, enable_cpu_backup=True, cpu_backup_backend=backend):
        tensor = torch.full((SIZE,), 7, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(tensor)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    saver.pause(tag)
    saver.resume(tag)
    with torch.cuda.stream(side):
        target.copy_(tensor)
    side.synchronize()
    assert holds(target, 7)


def test_odd_size(tag: str) -> None:
    """Memory of an odd size, from cudaMalloc itself, is kept to its last byte."""
    size = 6913
    cuda: Any = ctypes.CDLL(None)
    pointer, buffer = ctypes.c_void_p(), ctypes.create_string_buffer(size)
    with tms.region(tag, backup="host"):
        assert cuda.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0
    contents = os.urandom(size)
    assert cuda.cudaMemcpy(pointer, contents, ctypes.c_size_t(size), 1) == 0
    tms.pause(tag)
    tms.resume(tag)
    assert cuda.cudaMemcpy(buffer, pointer, ctypes.c_size_t(size), 2) == 0
    assert buffer.raw == contents
    assert cuda.cudaFree(pointer) == 0


@pytest.mark.several_gpus
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")
def test_two_devices_with_one_current(in_mode: InMode) -> None:
    """One resume brings both back, and leaves the thread's current device unchanged."""
    in_mode("""
        def both():
            return [total - free for free, total in map(torch.cuda.mem_get_info, range(2))]

        for backend in ("pinned", "mmap"):
            tensors = []
            for device in range(2):
                torch.cuda.set_device(device)
                region = saver.region(
                    f"{backend} {device}", enable_cpu_backup=True, cpu_backup_backend=backend
                )
                with region:
                    tensors.append(full(7 + device))
                assert holds(tensors[device], 7 + device)
            torch.cuda.set_device(0)
            for cycle in range(2):
                before = both()
                saver.pause(f"{backend} 1")
                assert abs(both()[0] - before[0]) <= MiB
                saver.pause(f"{backend} 0")
                paused = both()
                saver.resume()
                after = both()
                assert torch.cuda.current_device() == 0
                for device, tensor in enumerate(tensors):
                    assert before[device] - paused[device] >= SIZE, (backend, cycle, device)
                    more = after[device] - before[device]
                    assert abs(more) <= MiB, (backend, cycle, device, more)
                    torch.cuda.set_device(device)
                    assert holds(tensor, 7 + device), (backend, cycle, device)
                torch.cuda.set_device(0)
            del tensors, tensor
    """)
