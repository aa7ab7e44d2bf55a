"""TMS_SHAREABLE: a region's memory in another process, by the driver's functions."""

from __future__ import annotations

import children


def test_another_process_maps_segments() -> None:
    """Each its own, also beside others of its tag; after a resume an importer maps the new memory.

    preload/testdata/export.c shows that an importer keeps its memory over a pause, because the
    simulator does not know what other processes hold.
    """
    out = children.output(
        """
        import hashlib, os
        import cuda, sharing, tms

        SIZE = 4 * cuda.MiB

        def change():
            for pointer in pointers:
                cuda.write(pointer, os.urandom(SIZE))

        def contents():
            return [hashlib.sha256(cuda.read(pointer, SIZE)).hexdigest() for pointer in pointers]

        with tms.region("t", backup="host"):
            pointers = [cuda.malloc(SIZE) for _ in range(3)]
        for cycle in range(2):
            importers = [sharing.Importer(pointer, SIZE) for pointer in pointers]
            for _ in range(2):
                change()
                assert [importer.reads() for importer in importers] == contents()
            for importer in importers:
                importer.end()
            before = contents()
            tms.pause()
            tms.resume()
            assert contents() == before
        print("done")
        """,
        TMS_SHAREABLE="1",
    )
    assert out == "done\n"
