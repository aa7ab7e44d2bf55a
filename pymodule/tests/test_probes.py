"""A paused server, as Kubernetes sees it: docs/containers.md."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from reaching import TMS, undisturbed
from simulator import HANGS

SERVER = """
import http.server, cuda
memory = cuda.malloc(8 << 20)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/ready":
            cuda.write(memory, b"contents")
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


def asked(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANGS)
    connection.request("GET", path)
    return connection.getresponse().status


def command(*arguments: str) -> str:
    return subprocess.run([TMS, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("then", ["resume", "delete"])
def test_probes_of_a_paused_server(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs no GPU answers, what needs it waits, and a pod that is deleted ends."""
    monkeypatch.setenv("CUDASIM_SHARED", f"probes-{os.getpid()}")
    call = [str(TMS), "run", "--simulate", "--memory", "64M", "--", sys.executable, "-c", SERVER]
    environment = {**undisturbed(), "PYTHONPATH": str(Path(__file__).parent)}
    with subprocess.Popen(call, stdout=subprocess.PIPE, env=environment, text=True) as server:
        try:
            assert server.stdout
            port, number = int(server.stdout.readline()), str(server.pid)
            assert asked(port, "/alive") == asked(port, "/ready") == 200
            command("pause", number)
            answers: list[int] = []
            waiting = threading.Thread(target=lambda: answers.append(asked(port, "/ready")))
            if then == "resume":
                waiting.start()
                until = time.monotonic() + HANGS
                while not json.loads(command("ps", "--json", number))[0]["held_up"]:
                    assert time.monotonic() < until
            assert asked(port, "/alive") == 200
            assert not answers
            if then == "resume":
                command("resume", number)
                waiting.join()
                assert answers == [200]
            server.send_signal(signal.SIGTERM)
            assert server.wait(HANGS) == -signal.SIGTERM
        finally:
            server.kill()
