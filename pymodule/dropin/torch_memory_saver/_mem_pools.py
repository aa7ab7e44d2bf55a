"""The memory pools of regions, as the mapping that clients look into."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableMapping
from typing import Any

from tms import _torch
from tms._region_pools import Pool

Key = tuple[str, bool, bool, str, int]
"""(tag, cpu backup, disk backup, cpu backup's backend or "", device)."""


class MemPools(MutableMapping[Key, Any]):
    """torch.cuda.MemPool objects by what their memory has in common.

    A key exists from its first region on. Deleting it releases the pool: the next
    torch.cuda.empty_cache() gives the device what is free in it, and the rest once it has been
    freed. Setting one makes regions take their memory from that pool, which must have been made
    with the allocator of `_hook_util`.
    """

    def key(self, tag: str, cpu: bool, disk: bool, backend: str) -> Key:
        """The key on the current device."""
        torch = sys.modules.get("torch")
        there = _torch.region_pools() is not None
        device: int = torch.cuda.current_device() if torch and there else 0
        return (tag, bool(cpu), bool(disk), backend, device)

    def __getitem__(self, key: Key) -> Any:
        return self._pools()[key][0].memory

    def __setitem__(self, key: Key, pool: Any) -> None:
        self.pop(key, None)
        _torch.adopt(key, pool)

    def __delitem__(self, key: Key) -> None:
        pools = _torch.region_pools()
        for pool in self._pools()[key]:
            assert pools is not None
            pools.drop(pool)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._pools())

    def __len__(self) -> int:
        return len(self._pools())

    def _pools(self) -> dict[Key, list[Pool]]:
        pools = _torch.region_pools()
        known = pools.known() if pools else {}
        # Regions of tms itself have other keys.
        return {key: found for key, found in known.items() if key and len(key) == 5}  # type: ignore[misc]
