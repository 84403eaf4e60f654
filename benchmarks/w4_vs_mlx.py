"""Our 4-bit kernels beside MLX's operations, in compiled chains: products x -> W1 x -> W2 (W1 x) -> ..., and layers of Qwen3 without attention.

    python benchmarks/w4_vs_mlx.py --json benchmarks/results/w4-h200.json

A layer is norm, QKV, QK-norm, RoPE, O with its residual, norm, gate, up, SwiGLU, down with its residual: five launches of ours. Its queries stand
for what attention would give. Several weights in turn, more than a last cache holds where they are large. Medians over rounds that alternate
between the two. Bytes are the packed weights, scales and biases, read once.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import tinymlx  # noqa: F401  before mlx.core
import mlx.core as mx

from tinymlx import kernels, ops
from tinymlx.kernels.w4_matmul import w4_linear
from tinymlx.kernels.w4_matvec import most_rows, w4_matvec
from tinymlx.memory.sizes import HEAD_DIM, SIZES

COLD_BYTES = 400e6
LINKS = 100  # products of a measurement, at least
GROUP = 64
EPS = 1e-6


def packed(N: int, K: int) -> ops.Linear:
    w, scales, biases = mx.quantize((mx.random.normal((N, K)) / K**0.5).astype(mx.bfloat16), group_size=GROUP, bits=4)
    mx.eval(w, scales, biases)
    return ops.Linear(w, None, scales, biases, ops.Quantization(GROUP, 4))


def nbytes(weights: list[ops.Linear]) -> int:
    return sum(a.nbytes for w in weights for a in (w.weight, w.scales, w.biases))


def products(K: int, N: int, rows: int) -> tuple[dict[str, Callable], int, int]:
    """-> chains by name, products in one, bytes of one product."""
    size = N * K * 9 // 16
    pairs = [(packed(N, K), packed(K, N)) for _ in range(max(2, min(16, int(COLD_BYTES / (2 * size)))))]

    def chain(product: Callable) -> Callable:
        def run(x):
            for up, down in pairs:
                x = product(product(x, up), down)
            return x

        return run

    ours = w4_matvec if rows <= most_rows(mx.zeros((rows, K), mx.bfloat16), normed=False) else w4_linear
    mlx = lambda x, w: mx.quantized_matmul(x, *w[:1], *w[2:4], transpose=True, group_size=GROUP, bits=4)  # noqa: E731
    dense = lambda x, w: x @ ops.dequantize(w).T  # noqa: E731
    chains = {"ours": chain(ours), "mlx": chain(mlx)} | ({"unpacked": chain(dense)} if rows > 16 else {})
    return chains, 2 * len(pairs), nbytes([w for pair in pairs for w in pair]) // (2 * len(pairs))


def layers(name: str, rows: int) -> tuple[dict[str, Callable], int, int]:
    """-> chains by name, layers in one, bytes of one layer."""
    size = next(s for s in SIZES if s.name == name)
    H, G, K, I = size.heads * HEAD_DIM, size.kv_heads * HEAD_DIM, size.hidden, size.intermediate  # noqa: E741
    shapes = ((H, K), (G, K), (G, K), (K, H), (I, K), (I, K), (K, I))
    count = max(2, min(12, int(COLD_BYTES / (sum(n * k for n, k in shapes) * 9 / 16))))
    stack = [[packed(n, k) for n, k in shapes] for _ in range(count)]
    norm, head_norm = mx.ones(K, mx.bfloat16), mx.ones(HEAD_DIM, mx.bfloat16)
    periods, offsets = ops.rope_periods(HEAD_DIM, 1e6)[0], mx.full(rows, 512)

    def chain(route: str) -> Callable:
        qkv, turn, add, gate_up = (
            getattr(kernels, operation).routes[route].run
            for operation in ("norm_qkv", "qk_norm_rope", "linear_residual", "norm_gate_up")
        )

        def run(x):  # [rows, 1, K]: as many requests
            for q_proj, k_proj, v_proj, o_proj, gate, up, down in stack:
                q, k, v = qkv(x, norm, EPS, q_proj, k_proj, v_proj)
                q, k = turn(q, k, head_norm, head_norm, EPS, offsets, periods, 1.0)
                y = mx.depends(q.swapaxes(1, 2).reshape(rows, 1, H), [k, v])
                x = add(x, y, o_proj)
                x = add(x, gate_up(x, norm, EPS, gate, up), down)
            return x

        return run

    return {"ours": chain("ours"), "mlx": chain("mlx")}, count, nbytes([w for layer in stack for w in layer]) // count


def warm(chains: dict[str, Callable], x: mx.array) -> dict[str, Callable]:
    on_cpu = mx.default_device() == mx.cpu  # where our kernels are eager
    chains = {name: chain if on_cpu else mx.compile(chain) for name, chain in chains.items()}
    for chain in chains.values():
        mx.eval(chain(x))
    return chains


def measure(chains: dict[str, Callable], x: mx.array, links: int, rounds: int) -> dict[str, float]:
    """Median seconds of one link of each chain."""
    taken: dict[str, list[float]] = {name: [] for name in chains}
    calls = 1 if mx.default_device() == mx.cpu else -(-LINKS // links)
    for _ in range(rounds):
        for name, chain in chains.items():
            began, y = time.perf_counter(), x
            for _ in range(calls):
                y = chain(y)
            mx.eval(y)
            taken[name].append((time.perf_counter() - began) / (calls * links))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def cases(rows: list[int], wanted: str) -> list[tuple[str, int]]:
    labels = ["8192 x 32768", "Qwen3-0.6B", "Qwen3-4B", "Qwen3-8B"]
    return [(label, count) for label in labels if wanted in label for count in rows]


def run(label: str, rows: int) -> tuple[dict[str, Callable], mx.array, int, int]:
    """-> warm chains, their argument, links, bytes of a link."""
    if label == "8192 x 32768":
        chains, links, size = products(8192, 32768, rows)
        x = mx.random.normal((rows, 8192)).astype(mx.bfloat16)
    else:
        chains, links, size = layers(label, rows)
        x = mx.random.normal((rows, 1, next(s for s in SIZES if s.name == label).hidden)).astype(mx.bfloat16)
    return warm(chains, x), x, links, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--only", default="", help="a part of the name of a shape or model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    results = []
    for label, rows in cases(arguments.rows, arguments.only):
        chains, x, links, size = run(label, rows)
        seconds = measure(chains, x, links, arguments.rounds)
        results.append(record(label, rows, size, seconds))
    if arguments.json:
        device = mx.device_info().get("device_name", "CPU")
        kept = {"device": device, "mlx": mx.__version__, "dtype": "bfloat16", "group_size": GROUP, "results": results}
        with open(arguments.json, "w") as file:
            json.dump(kept, file, indent=1)
            file.write("\n")


def record(label: str, rows: int, size: int, seconds: dict[str, float]) -> dict:
    shown = "   ".join(f"{name} {s * 1e6:7.1f} us {size / s / 1e9:5.0f} GB/s" for name, s in seconds.items())
    print(f"{label:14} {rows:3} rows   {shown}   {seconds['mlx'] / seconds['ours']:.2f} x", flush=True)
    return {"shape": label, "rows": rows, "bytes": size, **seconds}


if __name__ == "__main__":
    main()
