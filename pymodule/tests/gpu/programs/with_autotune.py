"""torch.compile with captured graphs, compiled for new shapes while it runs."""

from __future__ import annotations

import steps
import torch

SIZES = (512, 768, 1024, 1280)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    weights = torch.randn(1024, 1024, device="cuda")

    def layer(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.softmax(torch.relu(x @ weights) * 0.01, dim=-1)

    compiled = torch.compile(layer, mode="reduce-overhead", dynamic=False)
    filler = torch.ones(64 << 20, dtype=torch.int32, device="cuda")
    run = steps.Run(options.steps)
    for number in run.steps():
        rows = SIZES[min(number // 20, len(SIZES) - 1)]
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.full((rows, 1024), 0.001 * (number % 100), device="cuda")
        with torch.no_grad():
            run.note(compiled(x).double().sum().item())
        filler.mul_(1664525).add_(number)
        if number == 0:
            run.ready(torch.cuda.memory_reserved())
    run.note(filler.cpu().numpy().tobytes())
    run.end()


if __name__ == "__main__":
    main()
