"""Four threads of PyTorch, each with a stream, events and copies of pinned memory."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import steps
import torch

COUNT = 8 << 20


class Worker:
    def __init__(self, number: int) -> None:
        self.stream = torch.cuda.Stream()
        self.values = torch.full((COUNT,), number + 1, dtype=torch.int32, device="cuda")
        self.host = torch.empty(COUNT, dtype=torch.int32, pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream())

    def work(self, step: int) -> int:
        with torch.cuda.stream(self.stream):
            for _ in range(4):
                self.values.mul_(1664525).add_(step)
            self.host.copy_(self.values, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            done.synchronize()
            self.host[0] += 1
            self.values.copy_(self.host, non_blocking=True)
            self.stream.synchronize()
        return int(self.host[-1])


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    workers = [Worker(number) for number in range(4)]
    run = steps.Run(options.steps)
    with ThreadPoolExecutor(4) as threads:
        for number in run.steps():
            run.note(*threads.map(lambda worker, step=number: worker.work(step), workers))
            if number == 0:
                run.ready(torch.cuda.memory_reserved())
    for worker in workers:
        run.note(worker.values.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
