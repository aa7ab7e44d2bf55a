"""Pausable GPU memory: frees the physical memory of tensors, keeps their addresses.

Start the program with the library:

    LD_PRELOAD=$(python -m tms --path) python train.py

and in the program:

    with tms.region("weights", backup="host"):
        model = Model().cuda()
    tms.pause("weights")  # the memory is free for others
    tms.resume("weights")  # the same addresses, the same contents
"""

from ._arguments import Backup
from ._control import (
    DeviceStats,
    ProgressStats,
    Stats,
    TagStats,
    TotalStats,
    WaitingStats,
    configure,
    empty_cache,
    last_error,
    pause,
    paused,
    prepare,
    resume,
    serve,
    set_disk_backup_dir,
    stats,
    trim,
)
from ._cuda_graph import cuda_graph
from ._errors import (
    BackupError,
    CaptureError,
    ContentsError,
    ForkedError,
    GroupError,
    LibraryNotFoundError,
    NotPreloadedError,
    NotSupportedError,
    OutOfMemoryError,
    TmsError,
)
from ._kept import Kept, kept
from ._kept_versions import Following
from ._library import library_path
from ._live import live
from ._order import first_runs
from ._pool import (
    Pool,
    allocator,
    allocator_snapshot,
    allocator_stats,
    pool,
    reset_allocator_peak_stats,
    use_allocator,
)
from ._region import disable, exclude, region
from ._subprocess import configure_subprocess
from ._version import version

__version__ = version

__all__ = [
    "Backup",
    "BackupError",
    "CaptureError",
    "ContentsError",
    "DeviceStats",
    "Following",
    "ForkedError",
    "GroupError",
    "Kept",
    "LibraryNotFoundError",
    "NotPreloadedError",
    "NotSupportedError",
    "OutOfMemoryError",
    "Pool",
    "ProgressStats",
    "Stats",
    "TagStats",
    "TmsError",
    "TotalStats",
    "WaitingStats",
    "__version__",
    "allocator",
    "allocator_snapshot",
    "allocator_stats",
    "configure",
    "configure_subprocess",
    "cuda_graph",
    "disable",
    "empty_cache",
    "exclude",
    "first_runs",
    "kept",
    "last_error",
    "library_path",
    "live",
    "pause",
    "paused",
    "pool",
    "prepare",
    "region",
    "reset_allocator_peak_stats",
    "resume",
    "serve",
    "set_disk_backup_dir",
    "stats",
    "trim",
    "use_allocator",
    "version",
]

# A traceback and a pickle then name a class as the program does: tms.TmsError.
for _name in __all__:
    _public = globals()[_name]
    if isinstance(_public, type):
        _public.__module__ = __name__
