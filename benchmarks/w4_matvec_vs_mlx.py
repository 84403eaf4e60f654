"""Our 4-bit matrix times vector beside MLX's: a compiled chain x -> W1 x -> W2 (W1 x) -> ..., nothing between the products.

    python benchmarks/w4_matvec_vs_mlx.py --json benchmarks/results/w4-matvec-h200.json

Several pairs of weights in turn, more than a last cache holds where they are large. Medians over rounds that alternate between the two.
Bytes are the packed weights, scales and biases, read once.
"""

import argparse
import json
import statistics
import time

import tinymlx  # noqa: F401  before mlx.core
import mlx.core as mx

from tinymlx import ops
from tinymlx.kernels.w4_matvec import w4_matvec

SHAPES = {"8192 x 32768": (8192, 32768), "8B, MLP": (4096, 12288), "4B, MLP": (2560, 9728), "0.6B, MLP": (1024, 3072)}
COLD_BYTES = 400e6
GROUP = 64


def packed(N: int, K: int) -> ops.Linear:
    w, scales, biases = mx.quantize((mx.random.normal((N, K)) / K**0.5).astype(mx.bfloat16), group_size=GROUP, bits=4)
    mx.eval(w, scales, biases)
    return ops.Linear(w, None, scales, biases, ops.Quantization(GROUP, 4))


def mlx(x: mx.array, w: ops.Linear) -> mx.array:
    return mx.quantized_matmul(x, w.weight, w.scales, w.biases, transpose=True, group_size=GROUP, bits=4)


def measure(K: int, N: int, rows: int, rounds: int, least_s: float = 0.02) -> dict:
    """Seconds a product of each, and the bytes of one."""
    nbytes = N * K // 2 + 2 * 2 * N * K // GROUP
    pairs = [(packed(N, K), packed(K, N)) for _ in range(max(2, min(16, int(COLD_BYTES / (2 * nbytes)))))]
    x = mx.random.normal((rows, K)).astype(mx.bfloat16)
    chains = {}
    for name, product in (("ours", w4_matvec), ("mlx", mlx)):

        def chain(x, product=product):
            for up, down in pairs:
                x = product(product(x, up), down)
            return x

        chains[name] = chain if mx.default_device() == mx.cpu else mx.compile(chain)  # the CPU's route is eager
        mx.eval(chains[name](x))
    taken = {name: [] for name in chains}
    for _ in range(rounds):
        for name, chain in chains.items():
            began, done = time.perf_counter(), 0
            while time.perf_counter() - began < least_s:
                y = x
                for _ in range(4):
                    y = chain(y)
                mx.eval(y)
                done += 4 * 2 * len(pairs)
            taken[name].append((time.perf_counter() - began) / done)
    return {"bytes": nbytes, **{name: statistics.median(seconds) for name, seconds in taken.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = mx.device_info().get("device_name", "CPU")
    results = []
    for label, (K, N) in SHAPES.items():
        for rows in arguments.rows:
            got = measure(K, N, rows, arguments.rounds)
            rates = {name: got["bytes"] / got[name] / 1e9 for name in ("ours", "mlx")}
            print(f"{label:14} {rows:3} rows   ours {got['ours'] * 1e6:7.1f} us {rates['ours']:5.0f} GB/s   mlx {got['mlx'] * 1e6:7.1f} us "
                  f"{rates['mlx']:5.0f} GB/s   {got['mlx'] / got['ours']:.2f} x", flush=True)  # fmt: skip
            results.append({"shape": label, "K": K, "N": N, "rows": rows, **got})
    if arguments.json:
        record = {"device": device, "mlx": mx.__version__, "dtype": "bfloat16", "group_size": GROUP, "results": results}
        with open(arguments.json, "w") as file:
            json.dump(record, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
