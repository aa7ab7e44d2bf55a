"""The functions of libtms.so and their ctypes."""

from __future__ import annotations

import ctypes
from typing import Any

_TEXT, _BOOL, _CODE = ctypes.c_char_p, ctypes.c_bool, ctypes.c_int
_TEXTS = ctypes.POINTER(_TEXT)
_BYTES = ctypes.POINTER(ctypes.c_uint8)
_HANDLE, _OUT = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
_SIZE, _SIZES = ctypes.c_size_t, ctypes.POINTER(ctypes.c_size_t)
_NUMBER = ctypes.POINTER(ctypes.c_uint64)
_COUNT = ctypes.c_uint64


class _GraphPool(ctypes.Structure):
    """tms_torch_pool_id."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "tms_set_interesting_region": (None, _BOOL),
    "tms_get_interesting_region": (_BOOL,),
    "tms_set_excluded": (None, _BOOL),
    "tms_get_excluded": (_BOOL,),
    "tms_set_current_tag": (None, _TEXT),
    "tms_get_current_tag": (_TEXT,),
    "tms_set_backup": (_CODE, _TEXT),
    "tms_get_backup": (_TEXT,),
    "tms_set_enable_cpu_backup": (None, _BOOL),
    "tms_get_enable_cpu_backup": (_BOOL,),
    "tms_set_enable_disk_backup": (None, _BOOL),
    "tms_get_enable_disk_backup": (_BOOL,),
    "tms_set_enable_incremental_backup": (None, _BOOL),
    "tms_get_enable_incremental_backup": (_BOOL,),
    "tms_set_cpu_backup_backend": (None, _TEXT),
    "tms_get_cpu_backup_backend": (_TEXT,),
    "tms_set_disk_backup_dir": (None, _TEXT),
    "tms_pause": (_CODE, _TEXT),
    "tms_pause_gated": (_CODE, _TEXT, ctypes.c_double),
    "tms_pause_tags": (_CODE, _TEXTS, _TEXTS),
    "tms_pause_within": (_CODE, _TEXT, ctypes.c_double),
    "tms_discard": (_CODE, _TEXT),
    "tms_resume": (_CODE, _TEXT),
    "tms_resume_tags": (_CODE, _TEXTS, ctypes.c_double),
    "tms_resume_within": (_CODE, _TEXT, ctypes.c_double),
    "tms_resume_in_order": (_CODE, _TEXTS, ctypes.c_double, _HANDLE, _SIZE, _NUMBER),
    "tms_order_enter": (_CODE, _COUNT, ctypes.c_int),
    "tms_order_leave": (None, _COUNT),
    "tms_order_is_over": (_BOOL, _COUNT),
    "tms_paused_by": (ctypes.c_uint64, _TEXT),
    "tms_transitions": (ctypes.c_uint64,),
    "tms_pause_since": (_CODE, ctypes.c_uint64),
    "tms_resume_since": (_CODE, ctypes.c_uint64),
    "tms_maps_memory": (_BOOL,),
    "tms_live": (_CODE, _HANDLE, _SIZE, _HANDLE, _SIZE),
    "tms_prepare": (_CODE, _TEXT, _BOOL),
    "tms_last_bytes": (ctypes.c_uint64,),
    "tms_trim": (_CODE,),
    "tms_kept_create": (_CODE, _OUT, _TEXT, ctypes.c_int),
    "tms_kept_add": (_CODE, _HANDLE, _SIZE, _OUT),
    "tms_kept_seal": (_CODE, _HANDLE, _TEXT, _SIZE),
    "tms_kept_open": (_CODE, _OUT, _TEXT),
    "tms_kept_manifest": (_CODE, _HANDLE, _TEXT, _SIZE, _SIZES),
    "tms_kept_attach": (_CODE, _HANDLE),
    "tms_kept_advance": (_CODE, _HANDLE, _NUMBER, ctypes.POINTER(ctypes.c_int)),
    "tms_kept_back": (_CODE, _HANDLE, _NUMBER, ctypes.POINTER(ctypes.c_int)),
    "tms_kept_settle": (_CODE, _HANDLE),
    "tms_kept_follow": (_CODE, _HANDLE, ctypes.c_int),
    "tms_kept_step_begin": (None,),
    "tms_kept_step_end": (None,),
    "tms_kept_version": (_CODE, _HANDLE, _NUMBER),
    "tms_kept_before": (_CODE, _HANDLE, _NUMBER),
    "tms_kept_chunk": (_CODE, _HANDLE, _SIZE, _OUT, _SIZES, ctypes.POINTER(ctypes.c_int)),
    "tms_kept_close": (_CODE, _HANDLE),
    "tms_serve": (_CODE,),
    "tms_pause_everything": (_CODE, ctypes.c_double),
    "set_memory_margin_bytes": (None, ctypes.c_uint64),
    "tms_set_resume_wait": (_CODE, ctypes.c_double),
    "tms_get_resume_wait": (ctypes.c_double,),
    "tms_set_retain_cpu_backup": (None, _BOOL),
    "tms_get_retain_cpu_backup": (_BOOL,),
    "tms_get_cpu_backup_pointer": (_BYTES, _BYTES, ctypes.c_uint64),
    "tms_torch_malloc": (_HANDLE, ctypes.c_ssize_t, ctypes.c_int, _HANDLE),
    "tms_torch_free": (None, _HANDLE, ctypes.c_ssize_t, ctypes.c_int, _HANDLE),
    "tms_pool_create": (_CODE, _OUT, _TEXT, _TEXT, ctypes.c_int),
    "tms_pool_malloc": (_CODE, _HANDLE, _OUT, _SIZE, _HANDLE),
    "tms_pool_free": (_CODE, _HANDLE, _HANDLE),
    "tms_pool_record_stream": (_CODE, _HANDLE, _HANDLE, _HANDLE),
    "tms_pool_trim": (_CODE, _HANDLE, _SIZES),
    "tms_pool_stats_json": (_SIZE, _HANDLE, _TEXT, _SIZE),
    "tms_pool_snapshot_json": (_SIZE, _HANDLE, _TEXT, _SIZE),
    "tms_pool_reset_peak_stats": (_CODE, _HANDLE),
    "tms_pool_destroy": (_CODE, _HANDLE),
    "tms_torch_pool_use": (_CODE, _TEXT, _TEXT),
    "tms_torch_pool_malloc": (_HANDLE, ctypes.c_ssize_t, ctypes.c_int, _HANDLE),
    "tms_torch_pool_malloc_or_throw": (_HANDLE, ctypes.c_ssize_t, ctypes.c_int, _HANDLE),
    "tms_torch_pool_free": (None, _HANDLE, ctypes.c_ssize_t, ctypes.c_int, _HANDLE),
    "tms_torch_pool_init": (None, ctypes.c_int),
    "tms_torch_pool_reset": (None,),
    "tms_torch_pool_memory_fraction": (None, ctypes.c_double, ctypes.c_int),
    "tms_torch_pool_record_stream": (None, _HANDLE, _HANDLE),
    "tms_torch_pool_begin_allocate_to_pool": (None, ctypes.c_int, _GraphPool, _HANDLE),
    "tms_torch_pool_end_allocate_to_pool": (None, ctypes.c_int, _GraphPool),
    "tms_torch_pool_release_pool": (None, ctypes.c_int, _GraphPool),
    "tms_torch_pool_stats_json": (_SIZE, _TEXT, _SIZE),
    "tms_torch_pool_snapshot_json": (_SIZE, _TEXT, _SIZE),
    "tms_torch_pool_reset_peak_stats": (_CODE,),
    "tms_last_error": (_TEXT,),
    "tms_stats_json": (_SIZE, _TEXT, _SIZE),
    "tms_version": (_TEXT,),
}
"""The result of each function of tms.h, then its arguments."""


def typed(function: Any, name: str) -> Any:
    """Gives `function` the types of the one named `name`, and returns it."""
    function.restype, *function.argtypes = SIGNATURES[name]
    return function
