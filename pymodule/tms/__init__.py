"""Pausable GPU memory: frees the physical memory of tensors, keeps their addresses.

Start the program with the library:

    LD_PRELOAD=$(python -m tms --path) python train.py

and in the program:

    with tms.region("weights", backup="host"):
        model = Model().cuda()
    tms.pause("weights")  # the memory is free for others
    tms.resume("weights")  # the same addresses, the same contents
"""

from ._arguments import Backup as Backup
from ._control import (
    DeviceStats as DeviceStats,
    ProgressStats as ProgressStats,
    Stats as Stats,
    TagStats as TagStats,
    TotalStats as TotalStats,
    WaitingStats as WaitingStats,
    configure as configure,
    empty_cache as empty_cache,
    last_error as last_error,
    pause as pause,
    paused as paused,
    prepare as prepare,
    resume as resume,
    serve as serve,
    set_disk_backup_dir as set_disk_backup_dir,
    stats as stats,
    trim as trim,
)
from ._cuda_graph import cuda_graph as cuda_graph
from ._errors import (
    BackupError as BackupError,
    CaptureError as CaptureError,
    ContentsError as ContentsError,
    ForkedError as ForkedError,
    GroupError as GroupError,
    LibraryNotFoundError as LibraryNotFoundError,
    NotPreloadedError as NotPreloadedError,
    NotSupportedError as NotSupportedError,
    OutOfMemoryError as OutOfMemoryError,
    TmsError as TmsError,
)
from ._kept import Kept as Kept, kept as kept
from ._library import library_path as library_path
from ._live import live as live
from ._pool import (
    Pool as Pool,
    allocator as allocator,
    allocator_stats as allocator_stats,
    pool as pool,
    reset_allocator_peak_stats as reset_allocator_peak_stats,
    use_allocator as use_allocator,
)
from ._region import disable as disable, exclude as exclude, region as region
from ._subprocess import configure_subprocess as configure_subprocess
from ._version import version as version

__version__ = version
