"""TorchMemorySaver, and the inner object that clients reach into."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, TypeVar, cast, get_args

import tms
from tms import _cuda_graph, _torch
from tms._arguments import Backup, check_tag
from tms._expandable import refuse_expandable_segments
from tms._library import Library, attach, load
from tms._region import pausable
from tms._scope import Scope, ThreadScope

from ._mem_pools import MemPools
from .binary_wrapper import BinaryWrapper
from .hooks.base import HookMode, HookUtilBase

CpuBackupBackend = Literal["mmap", "pinned"]
_BYTES = ctypes.POINTER(ctypes.c_uint8)


class _Mode(NamedTuple):
    factory: Callable[[], Any]
    uses_preload: bool


_modes: dict[str, _Mode] = {}


def register_hook_mode(name: str, factory: Callable[[], Any], *, uses_preload: bool = True) -> None:
    """Makes `name` a hook_mode, in this process, for which `factory` makes the implementation.

    TorchMemorySaver leaves its calls to that object, under the names of its own methods, from the
    first use on. Register the mode in every process that uses it.

    Args:
        uses_preload: whether `configure_subprocess` preloads the library for it.

    Raises:
        ValueError: the name is taken.
    """
    if name in _modes:
        raise ValueError(f"hook_mode {name!r} is registered already: choose another name")
    _modes[name] = _Mode(factory, uses_preload)


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _by_mode(method: _Method) -> _Method:
    """Lets the implementation of a registered hook_mode answer instead, by keywords.

    It gets defaults too, except for arguments that are newer than such implementations.
    """
    signature = inspect.signature(method)

    @functools.wraps(method)
    def chosen(self: TorchMemorySaver, *arguments: Any, **named: Any) -> Any:
        if self._hook_mode in _OUR_MODES:
            return method(self, *arguments, **named)
        bound = signature.bind(self, *arguments, **named)
        unasked = {"self", *({"enable_disk_backup", "cpu_backup_backend"} - {*bound.arguments})}
        bound.apply_defaults()
        passed = {name: value for name, value in bound.arguments.items() if name not in unasked}
        return getattr(self._initialized(), method.__name__)(**passed)

    return cast(_Method, chosen)


class TorchMemorySaver:
    """Makes the memory of CUDA tensors pausable. All instances share the process's one library.

    Every method initializes the instance on first use, which raises NotPreloadedError with
    hook_mode "preload" in a process without the library, and NotSupportedError (a RuntimeError)
    with hook_mode "torch" and expandable_segments:True.
    """

    enabled = True

    def __init__(self) -> None:
        self._hook_mode = "preload"
        self._impl: Any = None

    @_by_mode
    def region(
        self,
        tag: str = "default",
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: CpuBackupBackend | None = None,
    ) -> Scope:
        """Makes the device memory that this thread allocates in the body pausable: `tms.region`.

        As with `tms.region`, the same object can be used again and again.

        Args:
            tag: a name for `pause` and `resume`.
            enable_cpu_backup: a pause keeps the contents in host memory.
            enable_disk_backup: a pause keeps them in files; see `set_disk_backup_dir`.
            cpu_backup_backend: "pinned" or "mmap" host memory, by default the current setting,
                which is pinned at first.

        Raises:
            ValueError: both backups, a backend that does not exist or without
                enable_cpu_backup, or no tag.
        """
        check_tag(tag)
        _check_backups(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)

        def route(library: Library) -> _torch.Route | None:
            backend = cpu_backup_backend or library.cpu_backup_backend.decode()
            backend = backend if enable_cpu_backup else ""
            pools = self._initialized()._mem_pools
            return _torch.enter(pools.key(tag, enable_cpu_backup, enable_disk_backup, backend))

        settings = _settings(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        return ThreadScope(f"torch_memory_saver.region({tag!r})", route, settings, load=self._load)

    @_by_mode
    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: Any,
        pool: Any = None,
        stream: Any = None,
        capture_error_mode: str = "global",
        tag: str = "default",
        enable_cpu_backup: bool = False,
        cpu_backup_backend: CpuBackupBackend | None = None,
    ) -> Iterator[None]:
        """`torch.cuda.graph`, with the memory that the graph takes pausable: `tms.cuda_graph`.

        Args:
            cuda_graph, pool, stream, capture_error_mode: as for torch.cuda.graph.
            tag, enable_cpu_backup, cpu_backup_backend: as for `region`.

        Raises:
            NotSupportedError: hook_mode is "torch", and nothing is preloaded.
            ValueError: as for `region`.
        """
        check_tag(tag)
        _check_backups(enable_cpu_backup, False, cpu_backup_backend)
        impl = self._initialized()
        inside = impl._with_region_config(tag, enable_cpu_backup, cpu_backup_backend)
        with _cuda_graph.capture(cuda_graph, pool, stream, capture_error_mode, inside):
            yield

    @_by_mode
    def disable(self) -> Scope:
        """Makes this thread's allocations in the body ordinary: `tms.disable`.

        Afterwards, what is free of them goes back to the device. Outside regions it does nothing.
        """
        return ThreadScope(
            "torch_memory_saver.disable()",
            lambda library: _torch.enter(None),
            lambda library: {"active": False},
            disposes=True,
            load=self._load,
        )

    @_by_mode
    def pause(self, tag: str | None = None) -> None:
        """`tms.pause`, of all tags if the tag is None or ""."""
        self._initialized()
        tms.pause(tag or None)

    @_by_mode
    def resume(self, tag: str | None = None) -> None:
        """`tms.resume`, of all tags if the tag is None or ""."""
        self._initialized()
        tms.resume(tag or None)

    @property
    def hook_mode(self) -> str:
        """How memory becomes pausable; set it before you use anything else.

        "preload", "tms" (the same), "torch", or a name that `register_hook_mode` was given.
        """
        return self._hook_mode

    @hook_mode.setter
    def hook_mode(self, hook_mode: str) -> None:
        if hook_mode not in _modes:
            raise ValueError(f"hook_mode must be one of {', '.join(_modes)}, not {hook_mode!r}")
        if self._impl is not None and hook_mode != self._hook_mode:
            raise RuntimeError(
                f"hook_mode is {self._hook_mode!r} and in use: set it before anything else is used"
            )
        self._hook_mode = hook_mode

    @property
    def memory_margin_bytes(self) -> int:
        """Can only be set: an allocation in a region fails if it would leave less free."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if not 0 <= value < 2**64:
            raise ValueError(f"memory_margin_bytes must be a number of bytes, not {value}")
        self._initialized()._binary_wrapper.cdll.set_memory_margin_bytes(value)

    @property
    def retain_cpu_backup(self) -> bool:
        """Whether host copies are kept after a resume."""
        return bool(self._initialized()._binary_wrapper.cdll.tms_get_retain_cpu_backup())

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        self._initialized()._binary_wrapper.cdll.tms_set_retain_cpu_backup(value)

    @_by_mode
    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The contents of a CUDA tensor as of its last pause, as a CPU tensor.

        Args:
            x: contiguous.
            zero_copy: return the host memory itself, which is valid until the next resume, or
                with `retain_cpu_backup` until the memory is freed.

        Returns:
            None where there is no copy: active and not retained, without backup or with one on
            disk, or not of a region.

        Raises:
            ValueError: `x` is not on a CUDA device, or not contiguous.
        """
        cdll = self._initialized()._binary_wrapper.cdll
        if not x.is_cuda:
            raise ValueError(f"the tensor must be on a CUDA device, not on {x.device}")
        if not x.is_contiguous():
            raise ValueError("the tensor must be contiguous: its copy is one piece of host memory")
        copy = cdll.tms_get_cpu_backup_pointer(ctypes.cast(x.data_ptr(), _BYTES), x.nbytes)
        if not copy:
            return None
        import torch

        memory = (ctypes.c_uint8 * x.nbytes).from_address(ctypes.addressof(copy.contents))
        tensor = torch.frombuffer(memory, dtype=x.dtype).view(x.shape)
        return tensor if zero_copy else tensor.clone()

    def set_disk_backup_dir(self, path: str | os.PathLike[str]) -> None:
        """`tms.set_disk_backup_dir`; makes the directory now."""
        self._initialized()
        os.makedirs(path, exist_ok=True)
        tms.set_disk_backup_dir(path)

    def _ensure_initialized(self) -> None:
        self._initialized()

    def _initialized(self) -> Any:
        if self._impl is None:
            self._impl = _modes[self._hook_mode].factory()
        return self._impl

    def _uses_preload(self) -> bool:
        return _modes[self._hook_mode].uses_preload

    def _load(self) -> Library:
        return cast(Library, self._initialized()._library)


class _TorchMemorySaverImpl:
    """The saver of a process whose hook mode is set."""

    def __init__(self, hook_mode: HookMode = "preload") -> None:
        self._hook_mode = hook_mode
        self._hook_util = HookUtilBase.create(hook_mode)
        path = self._hook_util.get_path_binary()
        if path is not None:
            refuse_expandable_segments()
        self._binary_wrapper = BinaryWrapper(path)
        self._library = load() if path is None else attach(self._binary_wrapper.cdll)
        if hook_mode == "torch":
            _torch.allocate_with(self._hook_util.get_allocator())
        self._mem_pools = MemPools()

    def _with_region_config(
        self,
        tag: str,
        enable_cpu_backup: bool,
        cpu_backup_backend: CpuBackupBackend | None = None,
        enable_disk_backup: bool = False,
    ) -> ThreadScope:
        """The calling thread's settings for the body, without a pool."""
        settings = _settings(tag, enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        name = f"torch_memory_saver.region({tag!r})"
        return ThreadScope(name, lambda library: None, settings, any_pool=True)


register_hook_mode("preload", _TorchMemorySaverImpl)
register_hook_mode("tms", _TorchMemorySaverImpl)
register_hook_mode("torch", lambda: _TorchMemorySaverImpl("torch"))
_OUR_MODES = tuple(_modes)


def _settings(
    tag: str, cpu: bool, disk: bool, backend: CpuBackupBackend | None
) -> Callable[[Library], dict[str, Any]]:
    def settings(library: Library) -> dict[str, Any]:
        kind: Backup = "host" if cpu else "disk" if disk else None
        found = pausable(tag, kind, incremental=cpu and library.incremental_by_default)
        if backend is not None:
            found["cpu_backup_backend"] = backend.encode()
        return found

    return settings


def _check_backups(cpu: bool, disk: bool, backend: str | None) -> None:
    if cpu and disk:
        raise ValueError("enable_cpu_backup and enable_disk_backup exclude each other")
    if backend is None:
        return
    if backend not in get_args(CpuBackupBackend):
        raise ValueError(f"cpu_backup_backend must be 'pinned' or 'mmap', not {backend!r}")
    if not cpu:
        raise ValueError("cpu_backup_backend needs enable_cpu_backup=True")
