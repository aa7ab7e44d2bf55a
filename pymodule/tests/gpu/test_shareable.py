"""TMS_SHAREABLE: a region's tensor in another process, by the driver's functions."""

from __future__ import annotations

from pathlib import Path

from device import output, torch_on_gpu

torch_on_gpu()


def test_another_process_maps_a_tensor() -> None:
    """Memory, not a copy: the other process keeps that from before a pause, and we our contents."""
    out = output(
        """
        import hashlib, sys
        import torch, tms
        sys.path.append(sys.argv[1])
        import sharing

        SIZE = 64 << 20

        def contents():
            return hashlib.sha256(tensor.cpu().numpy()).hexdigest()

        def change():
            tensor.add_(1)
            torch.cuda.synchronize()

        with tms.region("t", backup="host"):
            tensor = torch.randint(256, (SIZE,), dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        first = sharing.Importer(tensor.data_ptr(), SIZE)
        original = contents()
        assert first.reads() == original
        change()
        changed = contents()
        assert first.reads() == changed != original
        tms.pause()
        assert first.reads() == changed
        tms.resume()
        assert contents() == changed
        change()
        assert first.reads() == changed != contents()
        second = sharing.Importer(tensor.data_ptr(), SIZE)
        assert second.reads() == contents()
        first.end()
        second.end()
        before = contents()
        tms.pause()
        tms.resume()
        assert contents() == before
        print("done")
        """,
        str(Path(__file__).resolve().parent.parent),
        TMS_SHAREABLE="1",
    )
    assert out == "done\n"


def test_not_for_the_program_itself() -> None:
    """Unless asked for, memory is not shared: a holder of the descriptor would not see a pause."""
    out = output(
        """
        import sys
        import torch, tms
        sys.path.append(sys.argv[1])
        import sharing

        with tms.region("t", backup="host"):
            tensors = [torch.zeros(20 << 20, dtype=torch.uint8, device="cuda") for _ in range(3)]
        for _ in range(2):
            for tensor in tensors:
                try:
                    sharing.Importer(tensor.data_ptr(), 20 << 20)
                except AssertionError as error:
                    assert str(error) == "the driver's code is 801", error
                else:
                    raise AssertionError("it was exported")
            tms.pause()
            tms.resume()
        print("done")
        """,
        str(Path(__file__).resolve().parent.parent),
    )
    assert out == "done\n"
