"""Arguments of each differentiable operation, drawn in NumPy: what make_gradients.py and tests/test_gradients.py both take.

A case is named after its operation. Keys of its arrays that start with a linear layer's name (`q.weight`, `q.lora_a`) belong to it; a
packed weight is `q.codes` (0 to 15), `q.scales` and `q.biases` in groups of 32. The loss is the sum of outputs times `cotangents`.
"""

import zlib

import numpy as np

B, L, K = 2, 3, 32  # rows, tokens, width of the stream
H, G, D = 4, 2, 16  # heads of queries, of keys; their size
GROUP, EPS, SCALE, LORA_SCALE = 32, 1e-5, 1.25, 0.5
OFFSETS, LENGTHS, WINDOW = [3, 40], [5, 2], 4
TOKENS = [[1, 7, 1], [0, 10, 7]]
PERIODS = (100.0 ** (np.arange(D // 2) / (D // 2))).astype(np.float32)
LINEARS = {  # (outputs, inputs) of the layers of each operation
    "norm_qkv": {"q": (H * D, K), "k": (G * D, K), "v": (G * D, K)},
    "norm_gate_up": {"gate": (24, K), "up": (24, K)},
    "linear_residual": {"w": (24, K)},
    "head": {"w": (40, K)},
}
CASES = (
    *(f"{operation} {kind}" for operation in LINEARS for kind in ("dense", "packed")),
    *("qk_norm_rope norm", "qk_norm_rope plain", "attend", "attend window", "attend empty", "embed dense"),
)


def inputs(name: str) -> dict[str, np.ndarray]:
    """Float32 arrays by name, `codes` aside."""
    operation, kind = name.split()[0], name.split()[-1]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    shapes = {"x": (B, L, K)}
    if operation == "qk_norm_rope":
        shapes = {"q": (B, L, H * D), "k": (B, L, G * D)} | (
            {"q_weight": (D,), "k_weight": (D,)} if kind == "norm" else {}
        )
    elif operation == "attend":
        shapes = {"q": (B, H, L, D), "k": (B, G, L, D), "v": (B, G, L, D)}
        if kind != "empty":  # of which LENGTHS count
            shapes |= {"cached_k": (B, G, max(LENGTHS), D), "cached_v": (B, G, max(LENGTHS), D)}
    elif operation == "embed":
        shapes = {}
    elif operation == "linear_residual":
        shapes["residual"] = (B, L, LINEARS[operation]["w"][0])
    else:
        shapes["norm"] = (K,)
    arrays = {key: rng.standard_normal(shape) for key, shape in shapes.items()}
    for layer, (outputs, width) in LINEARS.get(operation, {"table": (11, K)} if operation == "embed" else {}).items():
        if kind == "dense":
            arrays[f"{layer}.weight"] = rng.standard_normal((outputs, width)) / width**0.5
        else:
            arrays[f"{layer}.codes"] = rng.integers(0, 16, (outputs, width), dtype=np.uint32)
            arrays[f"{layer}.scales"] = rng.uniform(0.01, 0.03, (outputs, width // GROUP))
            arrays[f"{layer}.biases"] = -8 * arrays[f"{layer}.scales"]
        if operation != "embed":
            arrays[f"{layer}.lora_a"] = rng.standard_normal((2, width)) / width**0.5
            arrays[f"{layer}.lora_b"] = rng.standard_normal((outputs, 2))
            if kind == "dense" and operation == "norm_qkv":
                arrays[f"{layer}.bias"] = rng.standard_normal(outputs)
    return {key: a if a.dtype == np.uint32 else a.astype(np.float32) for key, a in arrays.items()}


def differentiated(name: str) -> list[str]:
    """Inputs whose gradient is stored: all but what is packed or cached."""
    frozen = ("codes", "scales", "biases")
    return [key for key in inputs(name) if key.rpartition(".")[2] not in frozen and not key.startswith("cached")]


def cotangents(name: str, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    rng = np.random.default_rng(zlib.crc32(name.encode()) + 1)
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
