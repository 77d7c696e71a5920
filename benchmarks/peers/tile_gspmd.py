"""YOLOv2's training step in JAX, images sharded by rows over CPU devices by XLA's partitioner.

Speaks the same protocol as `tile_torch.py`. One process holds all devices, with one thread a device as far as
XLA lets it be said; convolutions are channels-last, weights replicated, and the partitioner inserts the halo
exchanges and the reductions of batch normalisation by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from typing import Any

SIDE = 416
LEARNING_RATE = 1e-4
# (width, kernel) of each convolution; "pool" halves the map.
FRONT = [
    (32, 3), "pool", (64, 3), "pool", (128, 3), (64, 1), (128, 3), "pool",
    (256, 3), (128, 1), (256, 3), "pool", (512, 3), (256, 1), (512, 3), (256, 1),
]  # fmt: skip
DEEP = ["pool", (1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3), (1024, 3), (1024, 3)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", choices=("front", "all"), required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--devices", type=int, required=True)
    options = parser.parse_args()
    flags = f"--xla_force_host_platform_device_count={options.devices}"
    # Without this, operations of a device also use the threads of the other: two devices then beat one
    # device that is held to one thread only where the partitioner helps.
    flags += " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    os.environ["XLA_FLAGS"] = flags
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    baseline = rss_bytes()
    rng = np.random.default_rng(1)

    def conv_parameters(layers: list[Any], channels: int) -> tuple[list[Any], int]:
        made = []
        for layer in layers:
            if layer == "pool":
                continue
            width, kernel = layer
            scale = (2 / (kernel * kernel * channels)) ** 0.5
            weight = rng.normal(0, scale, (kernel, kernel, channels, width)).astype(np.float32)
            made.append((weight, np.ones(width, np.float32), np.zeros(width, np.float32)))
            channels = width
        return made, channels

    def conv(x: Any, weight: Any) -> Any:
        return lax.conv_general_dilated(x, weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def block(x: Any, parameters: Any) -> Any:
        weight, scale, shift = parameters
        x = conv(x, weight)
        mean = x.mean((0, 1, 2))
        variance = jnp.square(x - mean).mean((0, 1, 2))
        x = (x - mean) * (lax.rsqrt(variance + 1e-5) * scale) + shift
        return jnp.where(x > 0, x, 0.1 * x)

    def chain(x: Any, layers: list[Any], parameters: list[Any]) -> Any:
        rest = iter(parameters)
        for layer in layers:
            x = pool(x) if layer == "pool" else block(x, next(rest))
        return x

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def forward(parameters: dict[str, Any], x: Any) -> Any:
        x = chain(x, FRONT, parameters["front"])
        if options.layers == "front":
            return x
        fine = block(x, parameters["conv13"])
        passed = block(fine, parameters["passthrough"])
        n, h, w, c = passed.shape
        passed = passed.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 5, 2, 4)
        passed = passed.reshape(n, h // 2, w // 2, 4 * c)
        joined = jnp.concatenate((passed, chain(fine, DEEP, parameters["deep"])), axis=-1)
        return conv(block(joined, parameters["head"]), parameters["out"])

    parameters: dict[str, Any] = {}
    parameters["front"], _ = conv_parameters(FRONT, 3)
    if options.layers == "all":
        (parameters["conv13"],), _ = conv_parameters([(512, 3)], 256)
        (parameters["passthrough"],), _ = conv_parameters([(64, 1)], 512)
        parameters["deep"], _ = conv_parameters(DEEP, 512)
        (parameters["head"],), _ = conv_parameters([(1024, 3)], 1280)
        parameters["out"] = rng.normal(0, 0.04, (1, 1, 1024, 125)).astype(np.float32)

    mesh = jax.make_mesh((options.devices,), ("rows",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = NamedSharding(mesh, PartitionSpec())
    by_rows = NamedSharding(mesh, PartitionSpec(None, "rows"))
    parameters = jax.device_put(parameters, everywhere)
    x = rng.normal(size=(options.batch, SIDE, SIDE, 3)).astype(np.float32)
    x = jax.device_put(x, by_rows)

    def loss_of(parameters: dict[str, Any], x: Any) -> Any:
        return jnp.square(forward(parameters, x)).mean()

    def train(parameters: dict[str, Any], x: Any) -> tuple[dict[str, Any], Any]:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients), loss

    step = jax.jit(train, donate_argnums=0, out_shardings=(everywhere, everywhere))
    compiled = step.lower(parameters, x).compile()
    memory = compiled.memory_analysis()
    print(json.dumps({"ready": f"jax {jax.__version__}, {options.devices} CPU devices"}), flush=True)
    for line in sys.stdin:
        if not line.strip():
            break
        times, losses = [], []
        for _ in range(int(line) + 1):
            start = time.perf_counter()
            parameters, loss = step(parameters, x)
            losses.append(float(loss))
            jax.block_until_ready(parameters)
            times.append(time.perf_counter() - start)
        print(json.dumps({"seconds": times[1:], "losses": losses}), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    # One process holds all devices: their share of its memory, and XLA's own count of temporaries a device.
    shared = (peak - baseline) // options.devices
    print(json.dumps({"peak_bytes": shared, "activation_bytes": memory.temp_size_in_bytes}), flush=True)


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
