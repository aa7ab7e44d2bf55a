"""An engine with an HTTP server, whose standby shares its weights and takes over its port.

    tms run --backup sparse -- python standby.py serve PORT    # the engine, or the standby
    python standby.py load PORT                                # asks until the standby has answered

docs/kept.md has the recipe. The program needs no PyTorch, and also runs with tms run --simulate.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
import time
from contextlib import closing
from ctypes import byref, c_size_t, c_void_p
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer

SET = b"squares"
COUNT = 1 << 16
SIZE = c_size_t(8 * COUNT)
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind


class Engine:
    """Its weights are squares, in a set. A captured graph copies them into its own cache."""

    def __init__(self) -> None:
        ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
        self._process = ctypes.CDLL(None)  # its symbols: libtms.so comes before libcudart
        self._cache, self._stream, self._graph = c_void_p(), c_void_p(), c_void_p()
        self._call("cudaMalloc", byref(self._cache), SIZE)
        weights, captured = self._weights(), c_void_p()
        self._call("cudaStreamCreate", byref(self._stream))
        self._call("cudaStreamBeginCapture", self._stream, 2)  # cudaStreamCaptureModeRelaxed
        self._call("cudaMemcpyAsync", self._cache, weights, SIZE, ON_DEVICE, self._stream)
        self._call("cudaStreamEndCapture", self._stream, byref(captured))
        self._call("cudaGraphInstantiate", byref(self._graph), captured, c_size_t(0))

    def _weights(self) -> c_void_p:
        held, address = c_void_p(), c_void_p()
        if self._process.tms_kept_open(byref(held), SET) == 0:
            self._call("tms_kept_attach", held)
            self._call("tms_kept_chunk", held, c_size_t(0), byref(address), None, None)
        else:
            squares = (ctypes.c_int64 * COUNT)(*(number**2 for number in range(COUNT)))
            self._call("tms_kept_create", byref(held), SET, -1)
            self._call("tms_kept_add", held, SIZE, byref(address))
            self._call("cudaMemcpy", address, squares, SIZE, TO_DEVICE)
            self._call("tms_kept_seal", held, b"", c_size_t(0))
        return address

    def square(self, number: int) -> int:
        found = ctypes.c_int64()
        self._call("cudaMemset", self._cache, 0, SIZE)
        self._call("cudaGraphLaunch", self._graph, self._stream)
        place = c_void_p((self._cache.value or 0) + 8 * number)
        self._call("cudaMemcpy", byref(found), place, c_size_t(8), TO_HOST)
        return found.value

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._process, name)(*arguments)
        if code:
            raise RuntimeError(f"{name} returned cudaError {code}")


class Server(HTTPServer):
    """The port is the lock: while the engine lives, the standby cannot bind it."""

    allow_reuse_port = False


def serve(port: int) -> None:
    engine = Engine()
    engine.square(0)
    print("warm", flush=True)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            answer = f"{engine.square(int(self.path[1:]))} {os.getpid()}".encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    while True:
        try:
            server = Server(("127.0.0.1", port), Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            time.sleep(0.01)
        else:
            server.serve_forever()


def load(port: int) -> None:
    """Asks one number after another, until a second process has given a hundred answers."""
    engines: dict[str, int] = {}  # and the number of answers before each
    answers, longest, last = 0, 0.0, 0.0
    while len(engines) < 2 or answers < max(engines.values()) + 100:
        number = answers % COUNT
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
                connection.request("GET", f"/{number}")
                square, engine = connection.getresponse().read().decode().split()
        except (OSError, HTTPException):  # no server listens, or the answer broke off
            time.sleep(0.01)
            continue
        assert int(square) == number**2
        if engine not in engines:
            print(f"process {engine} answers", flush=True)
            engines[engine] = answers
        now = time.monotonic()
        longest, last = max(longest, now - (last or now)), now
        answers += 1
    print(f"{answers} answers, all right; the longest gap was {longest:.2f} s")


if __name__ == "__main__":
    {"serve": serve, "load": load}[sys.argv[1]](int(sys.argv[2]))
