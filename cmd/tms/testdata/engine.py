"""An engine's processes: a front that has NVML alone, one that has begun CUDA and NVML, and one with GPU memory and NVML.

In each a thread asks NVML all the time. The front answers each line of its standard input with a line.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import threading

SIZE = 8 << 20


class Nvml:
    """NVML, begun twice, with the handles that it gave first; a thread asks for a UUID by each again and again."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        assert self.library.nvmlInit() == self.library.nvmlInit_v2() == 0
        self.handles = self.all()
        self.expected = [self.uuid(handle) for handle in self.handles]
        assert len(set(self.expected)) == 2, self.expected
        self.rounds, self.wrong = 0, None
        threading.Thread(target=self.poll, daemon=True).start()

    def all(self) -> list[int]:
        count, found = ctypes.c_uint(), []
        assert self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        for index in range(count.value):
            handle = ctypes.c_void_p()
            assert self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
            found.append(handle.value)
        return found

    def uuid(self, handle: int) -> object:
        """Of a device, or the error."""
        text = ctypes.create_string_buffer(96)
        code = self.library.nvmlDeviceGetUUID(ctypes.c_void_p(handle), text, 96)
        return text.value.decode() if code == 0 else code

    def poll(self) -> None:
        while not self.wrong:
            found = [self.uuid(handle) for handle in self.handles]
            if found != self.expected:
                self.wrong = f"{found}, not {self.expected}"
            self.rounds += 1

    def check(self) -> None:
        before = self.rounds
        while self.rounds < before + 2 and not self.wrong:
            pass
        assert not self.wrong, self.wrong
        assert self.all() == self.handles

    def wait(self) -> str:
        """A thread waits for an event for ten minutes."""
        wait = self.library.nvmlEventSetWait_v2
        threading.Thread(target=wait, args=(None, None, 600_000), daemon=True).start()
        return "ok"

    def copy(self) -> str:
        """Begins another copy of NVML."""
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libnvidia-ml" in line)
        with tempfile.TemporaryDirectory() as folder:
            second = ctypes.CDLL(shutil.copy(path, folder))
        return "ok" if second.nvmlInit_v2() == 0 else "no"

    def end(self) -> int:
        """Ends NVML as often as it was begun, and begins it again."""
        self.wrong = "ended"
        ended = 0
        while self.library.nvmlShutdown() == 0:
            ended += 1
        assert self.library.nvmlInit_v2() == 0
        return ended


class Memory:
    def __init__(self) -> None:
        ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        self.runtime, self.pointer, self.seed = ctypes.CDLL(None), ctypes.c_void_p(), 0
        assert self.runtime.cudaMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(SIZE)) == 0
        self.write()

    def write(self) -> None:
        self.contents = bytes([self.seed % 251 + 1]) * SIZE
        assert self.runtime.cudaMemcpy(self.pointer, self.contents, ctypes.c_size_t(SIZE), 1) == 0

    def check(self) -> None:
        """Also writes other contents, for the next time."""
        back = ctypes.create_string_buffer(SIZE)
        assert self.runtime.cudaMemcpy(back, self.pointer, ctypes.c_size_t(SIZE), 2) == 0
        assert back.raw == self.contents
        self.seed += 1
        self.write()


class Process:
    def __init__(self, kind: str) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1") if kind == "begun" else None
        assert self.cuda is None or self.cuda.cuInit(0) == 0
        self.nvml, self.memory = Nvml(), Memory() if kind == "worker" else None

    def check(self) -> str:
        self.nvml.check()
        if self.memory:
            self.memory.check()
        if self.cuda:
            count = ctypes.c_int()
            assert self.cuda.cuDeviceGetCount(ctypes.byref(count)) == 0
            assert count.value == 2
        return "ok"

    def end(self) -> str:
        return str(self.nvml.end())


class Front(Process):
    def __init__(self) -> None:
        super().__init__("front")
        self.children = [
            subprocess.Popen([sys.executable, __file__, kind], stdin=-1, stdout=-1, text=True, bufsize=1)
            for kind in ("begun", "worker")
        ]
        assert self.ask("check") == "ok ok"

    def ask(self, word: str) -> str:
        answers = []
        for child in self.children:
            child.stdin.write(word + "\n")
            child.stdin.flush()
            answers.append(child.stdout.readline().strip())
        return " ".join(answers)

    def check(self) -> str:
        return f"{super().check()} {self.ask('check')}"

    def end(self) -> str:
        return f"{super().end()} {self.ask('end')}"

    def wait(self) -> str:
        return self.nvml.wait()

    def copy(self) -> str:
        return self.nvml.copy()

    def ring(self) -> str:
        """Starts a child with an io_uring until `unring`, and says whether the kernel has made it."""
        code = (
            "import ctypes; print(ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) > 0, flush=True);"
            "input()"
        )
        self.other = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True)
        return self.other.stdout.readline().strip()

    def unring(self) -> str:
        self.other.communicate("\n")
        return "ok"

    def fork(self) -> str:
        """Has a child of fork, which inherits files, use NVML, and stay until `reap`."""
        return self.child_of_fork(uses=True)

    def idle(self) -> str:
        """Has a child of fork that uses nothing."""
        return self.child_of_fork(uses=False)

    def child_of_fork(self, uses: bool) -> str:
        asked, self.asking = os.pipe()
        answer, said = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(self.asking)
            if uses:  # a process with one thread would not listen
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            found = [self.nvml.uuid(handle) for handle in self.nvml.handles] if uses else self.nvml.expected
            os.write(said, b"ok" if found == self.nvml.expected else repr(found).encode())
            os.read(asked, 1)
            found = [self.nvml.uuid(handle) for handle in self.nvml.handles] if uses else self.nvml.expected
            os._exit(found != self.nvml.expected)
        return os.read(answer, 1000).decode()

    def reap(self) -> str:
        os.write(self.asking, b"x")
        return str(os.waitpid(self.child, 0)[1])


def main() -> None:
    process = Process(sys.argv[1]) if len(sys.argv) > 1 else Front()
    for line in sys.stdin:
        print(getattr(process, line.strip())(), flush=True)


if __name__ == "__main__":
    main()
