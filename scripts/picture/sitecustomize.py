"""Each Python process notes what its tags hold, every 5 ms and at each pause or resume."""

import json
import os
import threading
import time

import tms

pause, resume = tms.pause, tms.resume
lock = threading.Lock()


def note() -> None:
    with lock, open(f"{os.environ['PICTURE']}.{os.getpid()}", "a") as file:
        devices = tms.stats()["devices"]
        held = {tag["tag"]: tag["physical_bytes"] for tag in devices[0]["tags"]} if devices else {}
        print(json.dumps([time.monotonic(), held]), file=file)


def noted_pause() -> int:
    note()
    freed = pause()
    note()  # before the other process can learn of it, so that no moment shows more than there is
    return freed


def noted_resume(wait: float) -> int:
    back = resume(wait=wait)
    note()  # on a busy machine the process can end before its sampler runs again
    return back


def sample() -> None:
    while True:
        note()
        time.sleep(0.005)


if "PICTURE" in os.environ:
    tms.pause, tms.resume = noted_pause, noted_resume
    threading.Thread(target=sample, daemon=True).start()
