"""A training in JAX, which takes three quarters of the device's memory before it begins."""

from __future__ import annotations

import os

# Autotuning may choose another algorithm as the fastest in another process.
os.environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"

import jax
import jax.numpy as jnp
import steps

SIZES = (512, 2048, 2048, 512)
EACH = 16  # training steps in one counted step


def loss(parameters: list[jax.Array], inputs: jax.Array) -> jax.Array:
    values = inputs
    for weights in parameters[:-1]:
        values = jax.nn.gelu(values @ weights)
    return jnp.mean((values @ parameters[-1] - inputs) ** 2)


@jax.jit
def train(
    parameters: list[jax.Array], key: jax.Array
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    key, use = jax.random.split(key)
    inputs = jax.random.normal(use, (256, SIZES[0]))
    value, gradients = jax.value_and_grad(loss)(parameters, inputs)
    return [p - 0.1 * g for p, g in zip(parameters, gradients)], key, value


@jax.jit
def train_several(
    parameters: list[jax.Array], key: jax.Array
) -> tuple[list[jax.Array], jax.Array, jax.Array]:
    def one(
        state: tuple[list[jax.Array], jax.Array], _: None
    ) -> tuple[tuple[list[jax.Array], jax.Array], jax.Array]:
        *after, value = train(*state)
        return (after[0], after[1]), value

    state, values = jax.lax.scan(one, (parameters, key), length=EACH)
    return (*state, values)


def taken() -> int:
    of = jax.devices()[0].memory_stats() or {}
    return int(of.get("pool_bytes") or of.get("bytes_limit") or 0)


def main() -> None:
    arguments = steps.parser(__doc__)
    arguments.add_argument("--platform", default="gpu")
    arguments.add_argument(
        "--calls", choices=["many", "one", "waited for"], default="many", help="of a counted step"
    )
    options = arguments.parse_args()
    platform = jax.devices()[0].platform
    if platform != options.platform:
        raise SystemExit(f"JAX runs on {platform}, not on a {options.platform}")
    jax.config.update("jax_default_matmul_precision", "highest")
    key = jax.random.key(1)
    parameters = [
        jax.random.normal(jax.random.fold_in(key, i), size) / size[0] ** 0.5
        for i, size in enumerate(zip(SIZES, SIZES[1:]))
    ]
    run = steps.Run(options.steps)
    for number in run.steps():
        losses = []
        if options.calls == "one":
            parameters, key, values = train_several(parameters, key)
            losses = list(values)
        else:
            for _ in range(EACH):
                parameters, key, value = train(parameters, key)
                losses.append(value)
                if options.calls == "waited for":
                    value.block_until_ready()
        run.note([float(value) for value in losses])
        if number == 0:
            run.ready(taken())
    run.note([float(jnp.sum(weights)) for weights in parameters])
    run.end()


if __name__ == "__main__":
    main()
