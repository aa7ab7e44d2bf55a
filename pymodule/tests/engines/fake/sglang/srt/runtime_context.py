"""Where sglang 0.5.23 has the sizes of its groups of ranks."""

from types import SimpleNamespace

_parallel = SimpleNamespace(tp_size=1, pp_size=1)


def get_parallel() -> SimpleNamespace:
    return _parallel
