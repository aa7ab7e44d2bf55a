"""TMS_DEBUG=poison: a use of lost contents shows, read as whatever type of number."""

from __future__ import annotations

from device import output, torch_on_gpu

torch_on_gpu()


def test_lost_contents_are_not_numbers() -> None:
    """After every resume; memory with a backup, and ordinary memory, keeps its contents."""
    out = output(
        """
        import torch, tms

        TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
        TYPES += [torch.float8_e4m3fn, torch.float8_e5m2]
        ones = torch.ones(5 * (1 << 20) + 3, device="cuda")

        def of_every_type():
            return [ones.to(dtype, copy=True) for dtype in TYPES]

        with tms.region("lost"):
            lost = of_every_type()
        with tms.region("kept", backup="host"):
            kept = of_every_type()
        for cycle in range(3):
            tms.pause()
            tms.resume()
            for tensor in lost:
                assert tensor.float().isnan().all(), (cycle, tensor.dtype, tensor)
                tensor.copy_(ones)
            for tensor in (ones, *kept, *lost):
                assert (tensor.float() == 1).all(), (cycle, tensor.dtype, tensor)
        print("done")
        """,
        TMS_DEBUG="poison",
    )
    assert out == "done\n"
