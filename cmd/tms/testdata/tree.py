"""A parent with children of both kinds, and with what a program has open: it checks all of it when it is told to.

It answers each line of its standard input with a line.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from multiprocessing import shared_memory

SIZE = 8 << 20
context = multiprocessing.get_context("spawn")


class Memory:
    """Memory of the GPU."""

    def __init__(self, seed: int) -> None:
        self.cuda = ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        self.runtime = ctypes.CDLL(None)
        self.pointer, self.seed = ctypes.c_void_p(), seed
        assert self.runtime.cudaMalloc(ctypes.byref(self.pointer), ctypes.c_size_t(SIZE)) == 0
        self.write()

    def write(self) -> None:
        self.contents = (self.seed * 2654435761 % 2**32).to_bytes(4, "little") * (SIZE // 4)
        assert self.runtime.cudaMemcpy(self.pointer, self.contents, ctypes.c_size_t(SIZE), 1) == 0

    def check(self) -> None:
        """Also writes other contents, for the next time."""
        back = ctypes.create_string_buffer(SIZE)
        assert self.runtime.cudaMemcpy(back, self.pointer, ctypes.c_size_t(SIZE), 2) == 0
        assert back.raw == self.contents
        self.seed += 1
        self.write()


def worker(number, asked, answers, lock, counter, name, peer):
    memory = Memory(number)
    shared = shared_memory.SharedMemory(name)
    answers.put((number, "ready"))
    for word in iter(asked.get, None):
        memory.check()
        with lock:
            counter.value += 1
            shared.buf[number] = (shared.buf[number] + 1) % 256
        peer.sendall(word.encode())
        assert peer.recv(100) == word.encode()[::-1]
        answers.put((number, word))


class Server:
    """What an engine's processes have open to wait for each other, as asyncio, ZeroMQ (ipc://) and PyTorch open it."""

    def __init__(self, child: int, folder: str) -> None:
        libc = ctypes.CDLL(None)
        self.count, self.child = libc.eventfd(3, 0), os.pidfd_open(child)
        signals = ctypes.create_string_buffer(128)
        libc.sigaddset(signals, signal.SIGUSR1)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        self.signals, self.timer = libc.signalfd(-1, signals, os.O_NONBLOCK), libc.timerfd_create(1, 0)
        self.memory = os.memfd_create("tree")
        os.write(self.memory, b"memory")
        self.file = os.open(f"/dev/shm/tree-{os.getpid()}", os.O_RDWR | os.O_CREAT, 0o600)  # as torch shares tensors
        os.ftruncate(self.file, 4096)
        self.shared = mmap.mmap(self.file, 4096)
        os.unlink(f"/dev/shm/tree-{os.getpid()}")
        self.shared[:6] = b"shared"
        self.locked = open(os.path.join(folder, "lock"), "w")
        fcntl.flock(self.locked, fcntl.LOCK_EX)
        self.path = os.path.join(folder, "socket")
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(self.path)
        self.listening.listen()
        self.ends = self.connect()
        self.poll = select.epoll()
        for descriptor in (self.count, self.child, self.signals, self.timer, self.ends[0]):
            self.poll.register(descriptor, select.EPOLLIN)

    def connect(self) -> tuple[socket.socket, socket.socket]:
        client = socket.socket(socket.AF_UNIX)
        client.connect(self.path)
        return self.listening.accept()[0], client

    def check(self) -> None:
        ready = lambda: sorted(descriptor for descriptor, _ in self.poll.poll(0))  # noqa: E731
        assert ready() == [self.count], (ready(), self.count)
        signal.raise_signal(signal.SIGUSR1)
        self.ends[1].sendall(b"word")
        assert ready() == sorted([self.count, self.signals, self.ends[0].fileno()])
        assert len(os.read(self.signals, 128)) == 128
        assert self.ends[0].recv(100) == b"word"
        assert os.read(self.count, 8) == (3).to_bytes(8, "little")
        os.write(self.count, (3).to_bytes(8, "little"))
        signal.pidfd_send_signal(self.child, 0)
        assert os.pread(self.memory, 100, 0) == b"memory"
        assert self.shared[:6] == os.pread(self.file, 6, 0) == b"shared"
        with open(self.locked.name) as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                raise AssertionError("the lock is lost")
            except BlockingIOError:
                pass
        for end in self.connect():  # others find it by its path
            end.close()


class Parent:
    def __init__(self) -> None:
        self.memory = Memory(100)
        self.shared = shared_memory.SharedMemory(create=True, size=4096)
        self.lock, self.counter = context.Lock(), context.Value("i", 0)
        self.answers, self.asked, self.peers, self.workers = context.Queue(), [], [], []
        for number in range(2):
            ours, theirs = socket.socketpair()
            asked = context.Queue()
            child = context.Process(
                target=worker,
                args=(number, asked, self.answers, self.lock, self.counter, self.shared.name, theirs),
                daemon=True,
            )
            child.start()
            theirs.close()
            self.asked.append(asked)
            self.peers.append(ours)
            self.workers.append(child)
        assert sorted(self.answers.get() for _ in range(2)) == [(0, "ready"), (1, "ready")]
        self.cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.deleted = tempfile.TemporaryFile()
        self.deleted.write(b"deleted")
        self.deleted.flush()
        self.mapped = mmap.mmap(-1, 4096)
        self.folder = tempfile.mkdtemp()
        libc = ctypes.CDLL(None)
        self.inotify = libc.inotify_init1(os.O_NONBLOCK)
        assert libc.inotify_add_watch(self.inotify, self.folder.encode(), 0x100) > 0  # IN_CREATE
        self.server = Server(self.workers[0].pid, self.folder)
        self.event = threading.Event()
        self.thread = threading.Thread(target=self.beat, daemon=True)
        self.beats = 0
        self.thread.start()
        self.connection = None
        self.rounds = 0

    def beat(self) -> None:
        while True:
            self.event.wait()
            self.event.clear()
            self.beats += 1

    def check(self) -> str:
        self.rounds += 1
        word = f"round {self.rounds}"
        self.memory.check()
        self.server.check()
        for asked in self.asked:
            asked.put(word)
        for peer in self.peers:
            assert peer.recv(100) == word.encode()
            peer.sendall(word.encode()[::-1])
        assert sorted(self.answers.get() for _ in self.peers) == [(n, word) for n in range(len(self.peers))]
        assert self.counter.value == 2 * self.rounds
        assert self.shared.buf[0] == self.shared.buf[1] == self.rounds % 256
        self.cat.stdin.write(word.encode())
        assert self.cat.stdout.read(100) == word.encode()
        self.deleted.seek(0)
        assert self.deleted.read() == b"deleted"
        self.mapped[0] = self.rounds % 256
        watched = os.path.join(self.folder, word)
        open(watched, "w").close()
        assert word.encode() in os.read(self.inotify, 4096)
        os.unlink(watched)
        before = self.beats
        self.event.set()
        while self.beats == before:
            pass
        return "ok"

    def accept(self) -> str:
        self.connection, _ = self.listening.accept()
        self.connection.sendall(b"hello")
        return "ok"

    def port(self) -> str:
        return str(self.listening.getsockname()[1])

    def connect(self) -> str:
        """Starts a child that sends back what it gets by TCP."""
        inside = socket.create_server(("127.0.0.1", 0))
        code = (
            "import socket, sys\n"
            "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "while word := connection.recv(100): connection.sendall(word)\n"
        )
        self.echo = subprocess.Popen([sys.executable, "-c", code, str(inside.getsockname()[1])])
        self.inside, _ = inside.accept()
        inside.close()
        return self.talk()

    def flood(self) -> str:
        """Starts a child that sends by TCP more than this process reads."""
        inside = socket.create_server(("127.0.0.1", 0))
        code = (
            "import socket, sys\n"
            "connection = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
            "connection.setblocking(False)\n"
            "sent = 0\n"
            "while True:\n"
            "    try: sent += connection.send(bytes([*range(256)] * 16)[sent % 256 :])\n"
            "    except BlockingIOError:\n"
            "        connection.setblocking(True)\n"
            "        print(flush=True)\n"
        )
        self.sender = subprocess.Popen([sys.executable, "-c", code, str(inside.getsockname()[1])], stdout=subprocess.PIPE)
        self.flooded, _ = inside.accept()
        inside.close()
        self.sender.stdout.readline()
        self.taken = 0
        return self.drain()

    def drain(self) -> str:
        """Reads a part of it, which is as it was sent."""
        try:
            part = self.flooded.recv(1000)
        except OSError:
            part = b""
        expected = bytes([*range(256)] * 5)[self.taken % 256 :][: len(part)]
        self.taken += len(part)
        return "closed" if not part else "ok" if part == expected else "other"

    def talk(self) -> str:
        try:
            self.inside.sendall(b"hello")
            return "ok" if self.inside.recv(100) == b"hello" else "closed"
        except OSError:
            return "closed"

    def dropped(self) -> str:
        """What an established connection says."""
        try:
            return repr(self.connection.recv(10))
        except OSError as error:
            return type(error).__name__

    def ring(self) -> str:
        """Opens an io_uring, and says whether the kernel has made it."""
        self.opened = ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120))  # io_uring_setup
        return "ok" if self.opened >= 0 else "no"

    def unring(self) -> str:
        os.close(self.opened)
        return "ok"

    def rings(self) -> str:
        """What the kernel answers to an io_uring of this thread, of another and of a child."""
        answers = []
        code = (
            "import ctypes, errno\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "made = libc.syscall(425, 8, ctypes.create_string_buffer(120))\n"
            "answers.append('made' if made >= 0 else errno.errorcode[ctypes.get_errno()])\n"
        )
        exec(code, {"answers": answers})
        thread = threading.Thread(target=exec, args=(code, {"answers": answers}))
        thread.start()
        thread.join()
        child = [sys.executable, "-c", f"answers = []\n{code}print(*answers)"]
        return " ".join([*answers, subprocess.run(child, stdout=subprocess.PIPE, text=True).stdout.strip()])

    def children(self) -> str:
        return " ".join(str(child.pid) for child in (*self.workers, self.cat))

    def end(self) -> str:
        """Ends the first worker, as the system's out-of-memory killer does."""
        child = self.workers[0]
        child.kill()
        child.join()
        return str(child.exitcode)


def main() -> None:
    parent = Parent()
    for line in sys.stdin:
        print(getattr(parent, line.strip())(), flush=True)


if __name__ == "__main__":
    main()
