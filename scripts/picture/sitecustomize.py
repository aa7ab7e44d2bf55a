"""Each Python process of the example notes every few milliseconds what its tags hold."""

import json
import os
import threading
import time

import tms


def sample() -> None:
    with open(f"{os.environ['PICTURE']}.{os.getpid()}", "w") as file:
        while True:
            devices = tms.stats()["devices"]
            held = (
                {tag["tag"]: tag["physical_bytes"] for tag in devices[0]["tags"]} if devices else {}
            )
            print(json.dumps([time.monotonic(), held]), file=file, flush=True)
            time.sleep(0.005)


if "PICTURE" in os.environ:
    threading.Thread(target=sample, daemon=True).start()
