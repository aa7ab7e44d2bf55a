"""One rank of NCCL by torch.distributed: reductions, gathers and broadcasts."""

from __future__ import annotations

import os
import tempfile

import steps
import torch
import torch.distributed


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    store = os.path.join(tempfile.mkdtemp(), "store")
    torch.distributed.init_process_group(
        "nccl",
        init_method=f"file://{store}",
        rank=0,
        world_size=1,
        device_id=torch.device("cuda:0"),
    )
    values = torch.arange(16 << 20, dtype=torch.int32, device="cuda")
    gathered = torch.empty_like(values)
    run = steps.Run(options.steps)
    for number in run.steps():
        values.mul_(1664525).add_(number)
        torch.distributed.all_reduce(values)
        work = torch.distributed.all_gather_into_tensor(gathered, values, async_op=True)
        assert work is not None
        work.wait()
        torch.distributed.broadcast(gathered, 0)
        values.bitwise_xor_(gathered >> 3)
        run.note(int(values.sum(dtype=torch.int64)))
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(values.cpu().numpy().tobytes())
    run.end()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
