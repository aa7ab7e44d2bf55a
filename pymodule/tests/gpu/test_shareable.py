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
