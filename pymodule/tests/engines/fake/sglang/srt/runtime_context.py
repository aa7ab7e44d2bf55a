"""Where sglang 0.5.23 has the sizes of its groups of ranks, and the arguments that are in force."""

from types import SimpleNamespace
from typing import Any

import sglang

_parallel = SimpleNamespace(tp_size=1, pp_size=1)


def get_parallel() -> SimpleNamespace:
    return _parallel


class RuntimeContext:
    server_args: Any = None

    def resolved_server_args_dict(self, base: Any = None) -> dict[str, Any]:
        return dict(self.server_args.resolved)


if sglang.__version__ == "0.5.23":
    _context = RuntimeContext()

    def get_context() -> RuntimeContext:
        return _context
