"""A server with GPU memory, of which tms restore can start several copies: server.py PORT.

It answers each GET with its port, its seed, a random number and a sum over its GPU memory. At
SIGHUP it reads /dev/shm/server.json, takes the port there, and seeds its random numbers. Each copy
has a /dev/shm of its own.
"""

import ctypes
import http.server
import json
import os
import random
import signal
import socket
import sys
import threading

SIZE = 1 << 20
SETTINGS = "/dev/shm/server.json"

cuda = ctypes.CDLL(os.environ.get("CUDART", "libcudart.so.13"), ctypes.RTLD_GLOBAL)
runtime = ctypes.CDLL(None)  # as programs see it: cudaMalloc is tms's
weights = ctypes.c_void_p()
assert runtime.cudaMalloc(ctypes.byref(weights), ctypes.c_size_t(SIZE)) == 0
assert runtime.cudaMemcpy(weights, bytes([1]) * SIZE, ctypes.c_size_t(SIZE), 1) == 0


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        copy = ctypes.create_string_buffer(SIZE)
        assert runtime.cudaMemcpy(copy, weights, ctypes.c_size_t(SIZE), 2) == 0
        answer = {"port": port, "seed": seed, "random": random.random(), "sum": sum(copy.raw)}
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    def server_bind(self) -> None:
        # All copies begin at the snapshot's port. Only sockets with this option can share it.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        super().server_bind()


def read_settings(*_: object) -> None:
    global port, seed
    with open(SETTINGS) as file:
        settings = json.load(file)
    port, seed = settings["port"], settings["seed"]
    random.seed(seed)
    threading.Thread(target=server.shutdown).start()  # which waits for this thread


port, seed = int(sys.argv[1]), 0
random.seed(seed)
signal.signal(signal.SIGHUP, read_settings)
while True:
    with Server(("127.0.0.1", port), Handler) as server:
        server.serve_forever(poll_interval=0.05)
