"""Puts all of tms's hooks on the sglang that this Python has, without a GPU.

    export LD_PRELOAD=$PWD/build/lib/libtms.so LD_LIBRARY_PATH=$PWD/build/sim PYTHONPATH=pymodule
    python scripts/newest/hooks.py

It imports sglang's own modules and needs what they need. Fails if sglang leaves out a hook.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from typing import Any

if sys.argv[1:]:
    print((__doc__ or "").strip())
    sys.exit()
os.environ.update(TMS_SGLANG="1", TMS_SGLANG_KEPT="1", TMS_SHARE="1")


def function(target: str) -> Any:
    """What a dotted name stands for: a module, and what is in it."""
    parts = target.split(".")
    for count in range(len(parts) - 1, 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        found = functools.reduce(getattr, parts[count:], found)
        return getattr(found, "__func__", found)
    raise SystemExit(f"{target}: there is no such module")


def main() -> None:
    hooks: Any = importlib.import_module("sglang.srt.plugins.hook_registry")
    plugin, loader, share = (
        importlib.import_module(f"tms.{name}")
        for name in ("_sglang", "_sglang_loader", "_sglang_share")
    )
    adapters = importlib.import_module(plugin._ADAPTERS).TorchMemorySaverAdapter
    targets = [f"{plugin._ADAPTERS}.TorchMemorySaverAdapter.create"]
    targets += [*loader.hooks(), *share.hooks()]
    before = {target: function(target) for target in targets}
    plugin.register()
    hooks.HookRegistry.apply_hooks()
    left = [target for target in targets if function(target) is before[target]]
    saver = adapters.create(True)
    with saver.region("weights"):
        pass
    print(f"sglang {importlib.import_module('sglang').__version__}: {len(targets)} hooks")
    if left or not isinstance(saver, plugin.Saver):
        raise SystemExit("without effect: " + ", ".join(left or ["the adapter"]))


if __name__ == "__main__":
    main()
