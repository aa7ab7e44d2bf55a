from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable
from enum import Enum
from typing import Any


class HookType(Enum):
    AFTER = "after"
    AROUND = "around"


class HookRegistry:
    _hooks: dict[str, Callable[..., Any]] = {}

    @classmethod
    def register(
        cls,
        target: str,
        hook: Callable[..., Any],
        hook_type: HookType = HookType.AFTER,
        *,
        source: Any = None,
    ) -> None:
        assert hook_type is HookType.AROUND
        assert target not in cls._hooks
        cls._hooks[target] = hook

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook in cls._hooks.items():
            owner_name, _, name = target.rpartition(".")
            owner = pkgutil.resolve_name(owner_name)
            wrapped = _around(hook, getattr(owner, name))
            static = isinstance(vars(owner)[name], staticmethod)
            setattr(owner, name, staticmethod(wrapped) if static else wrapped)


def _around(hook: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        return hook(original, *arguments, **named)

    return wrapped
