"""PyTorch on the bins and arenas of RMM, on two streams, as beside libraries that use RMM."""

from __future__ import annotations

import rmm
import steps
import torch
from rmm.allocators.torch import rmm_torch_allocator

ARENA = 512 << 20


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    arena = rmm.mr.ArenaMemoryResource(rmm.mr.CudaMemoryResource(), arena_size=ARENA)
    rmm.mr.set_current_device_resource(rmm.mr.BinningMemoryResource(arena, 18, 20))
    torch.cuda.memory.change_current_allocator(rmm_torch_allocator)
    kept = torch.zeros(16 << 20, dtype=torch.int32, device="cuda")
    torch.cuda.synchronize()
    streams = torch.cuda.Stream(), torch.cuda.Stream()
    held: list[torch.Tensor] = []
    run = steps.Run(options.steps)
    for number in run.steps():
        with torch.cuda.stream(streams[number % 2]):
            length = (1 + number % 13) << 16
            held.append(torch.full((length,), number, dtype=torch.int32, device="cuda"))
            kept[:length] += held[-1]
            if len(held) > 16:  # what it takes out was made on this stream
                run.note(int(held.pop(0).sum()))
            run.note(int(kept[: 1 << 16].sum()))
        if number == 0:
            run.ready(ARENA)
    run.note(kept.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
