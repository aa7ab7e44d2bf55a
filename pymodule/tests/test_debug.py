"""What TMS_DEBUG adds to find mistakes."""

from __future__ import annotations

import children
import pytest


@pytest.mark.parametrize("setting", ["poison", "poison,invariants"])
@pytest.mark.parametrize("extents", ["0", str(1 << 30)])
def test_poison(setting: str, extents: str) -> None:
    """Lost contents are NaNs to the last byte; kept ones, and ordinary memory, are untouched."""
    out = children.output(
        """
        import math, os, struct
        import cuda, tms

        SIZES = [1000, 3 * cuda.MiB, 5 * cuda.MiB + 12]

        def filled(size):
            pointer = cuda.malloc(size)
            contents = os.urandom(size)
            cuda.write(pointer, contents)
            return pointer, contents

        with tms.region("lost"):
            lost = [filled(size) for size in SIZES]
        with tms.region("kept", backup="host"):
            kept = [filled(size) for size in SIZES]
        untouched = [filled(size) for size in SIZES]
        for cycle in range(3):
            tms.pause()
            tms.resume()
            for pointer, contents in lost:
                read = cuda.read(pointer, len(contents))
                assert read == b"\\xff\\x7f" * (len(read) // 2)
                for kind in "efd":  # of 16, 32 and 64 bits
                    values = struct.unpack_from(f"<100{kind}", read)
                    assert all(map(math.isnan, values)), kind
                cuda.write(pointer, contents)
            for pointer, contents in (*lost, *kept, *untouched):
                assert cuda.read(pointer, len(contents)) == contents
        print("done")
        """,
        TMS_DEBUG=setting,
        TMS_EXTENT_BYTES=extents,
    )
    assert out == "done\n"


def test_unknown_name() -> None:
    """One line lists the names that exist; the names before the unknown one hold."""
    result = children.run(
        """
        import cuda, tms
        with tms.region():
            pointer = cuda.malloc(cuda.MiB)
        tms.pause()
        tms.resume()
        print(cuda.read(pointer, 4).hex())
        """,
        TMS_DEBUG="poison,poisons",
    )
    assert result.stdout == "ff7fff7f\n"
    (line,) = result.stderr.splitlines()
    assert "TMS_DEBUG=poison,poisons" in line
    assert "poison, invariants" in line
