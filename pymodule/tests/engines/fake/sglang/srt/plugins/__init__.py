from __future__ import annotations

import os
import traceback
from importlib.metadata import entry_points

from sglang.srt.plugins.hook_registry import HookRegistry

_plugins_loaded = False


def load_plugins() -> None:
    """A plugin that fails is left out, with a traceback."""
    global _plugins_loaded
    if _plugins_loaded:
        return
    _plugins_loaded = True
    allowed = os.environ.get("SGLANG_PLUGINS")
    for plugin in entry_points(group="sglang.srt.plugins"):
        if not allowed or plugin.name in allowed.split(","):
            try:
                plugin.load()()
            except Exception:
                traceback.print_exc()
    HookRegistry.apply_hooks()
