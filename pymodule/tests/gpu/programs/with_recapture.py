"""PyTorch that captures a graph in every step, replays the graph, and drops it."""

from __future__ import annotations

import steps
import torch


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = torch.arange(32 << 20, dtype=torch.int32, device="cuda")
    run = steps.Run(options.steps)
    for number in run.steps():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            mixed = values * 3
            mixed += number
            values.bitwise_xor_(mixed)
        for _ in range(3):
            graph.replay()
        run.note(int(values.sum(dtype=torch.int64)))
        del graph, mixed
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(values.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
