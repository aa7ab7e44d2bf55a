"""JAX with a growing pool and loops as CUDA graphs, compiled for new shapes as it runs."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_gpu_deterministic_ops=true --xla_gpu_graph_min_graph_size=1 --xla_gpu_autotune_level=0",
)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import steps  # noqa: E402


@jax.jit
def advance(values: jax.Array, step: jax.Array) -> jax.Array:
    def body(i: int, carried: jax.Array) -> jax.Array:
        return (carried * 1664525 + step + i) ^ (jnp.roll(carried, 1) >> 3)

    return jax.lax.fori_loop(0, 6, body, values)


def main() -> None:
    options = steps.parser(__doc__).parse_args()
    values = jnp.arange(16 << 20, dtype=jnp.uint32)
    run = steps.Run(options.steps)
    for number in run.steps():
        values = advance(values, jnp.uint32(number))
        rows = 1 + number // 40 % 8
        small = advance(values[: rows << 12], jnp.uint32(number))
        run.note(int(small.sum(dtype=jnp.uint32)), int(values[-1]))
        if number == 0:
            run.ready(64 << 20)
    run.note(jax.device_get(values).tobytes())
    run.end()


if __name__ == "__main__":
    main()
