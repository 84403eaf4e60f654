"""Make the golden gradients: of each operation in torch's own functions, in float64.

    python tests/golden/make_gradients.py            # writes tests/golden/gradients.npz
    python tests/golden/make_gradients.py --check    # computes them again and compares

Needs torch (README.md beside this file), not tinymlx. The file holds `<case>/<input>`: the gradient of the case's loss, float32.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from golden import gradient_cases as cases  # noqa: E402

FILE = HERE / "gradients.npz"


def linear(x: torch.Tensor, a: dict, layer: str) -> torch.Tensor:
    weight = a.get(f"{layer}.weight")
    if weight is None:
        wide = {key: a[f"{layer}.{key}"].repeat_interleave(cases.GROUP, 1) for key in ("scales", "biases")}
        weight = a[f"{layer}.codes"] * wide["scales"] + wide["biases"]
    y = F.linear(x, weight, a.get(f"{layer}.bias"))
    return y + cases.LORA_SCALE * F.linear(F.linear(x, a[f"{layer}.lora_a"]), a[f"{layer}.lora_b"])


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, x.shape[-1:], weight, cases.EPS)


def rope(x: torch.Tensor) -> torch.Tensor:
    """Pair (i, i + D/2) as a complex number, turned. x: [B, heads, L, D]"""
    positions = torch.tensor(cases.OFFSETS)[:, None] + torch.arange(x.shape[2])
    angles = positions[:, None, :, None] / torch.from_numpy(cases.PERIODS).double()
    first, second = x.chunk(2, -1)
    turned = torch.complex(first, second) * torch.polar(torch.full_like(angles, cases.SCALE), angles)
    return torch.cat([turned.real, turned.imag], -1)


def attend(a: dict, kind: str) -> torch.Tensor:
    """Row by row, over what is cached and new."""
    rows = []
    for b, length in enumerate(cases.LENGTHS if "cached_k" in a else [0] * cases.B):
        k, v = (torch.cat([a[f"cached_{x}"][b, :, :length], a[x][b]], 1) if length else a[x][b] for x in "kv")
        distance = length + torch.arange(cases.L)[:, None] - torch.arange(length + cases.L)
        mask = (distance >= 0) & (distance < (cases.WINDOW if kind == "window" else 1000))
        rows.append(F.scaled_dot_product_attention(a["q"][b], k, v, mask, scale=0.25, enable_gqa=True))
    return torch.stack(rows)


def outputs(name: str, a: dict) -> list[torch.Tensor]:
    operation, kind = name.split()[0], name.split()[-1]
    if operation == "norm_qkv":
        return [linear(norm(a["x"], a["norm"]), a, layer) for layer in "qkv"]
    if operation == "norm_gate_up":
        normed = norm(a["x"], a["norm"])
        return [F.silu(linear(normed, a, "gate")) * linear(normed, a, "up")]
    if operation == "linear_residual":
        return [a["residual"] + linear(a["x"], a, "w")]
    if operation == "head":
        return [linear(norm(a["x"], a["norm"]), a, "w")]
    if operation == "qk_norm_rope":
        heads = [a[x].unflatten(-1, (-1, cases.D)).transpose(1, 2) for x in "qk"]
        return [rope(norm(x, a[f"{n}_weight"]) if kind == "norm" else x) for x, n in zip(heads, "qk")]
    if operation == "attend":
        return [attend(a, kind)]
    return [F.embedding(torch.tensor(cases.TOKENS), a["table.weight"])]


def gradients(name: str) -> dict[str, np.ndarray]:
    wanted = cases.differentiated(name)
    a = {key: torch.from_numpy(value.astype(np.float64)) for key, value in cases.inputs(name).items()}
    for key in wanted:
        a[key].requires_grad_()
    made = outputs(name, a)
    weights = cases.cotangents(name, [tuple(y.shape) for y in made])
    loss = sum((y * torch.from_numpy(w).double()).sum() for y, w in zip(made, weights))
    return {
        f"{name}/{key}": g.float().numpy() for key, g in zip(wanted, torch.autograd.grad(loss, [a[k] for k in wanted]))
    }


def main() -> None:
    arrays = {key: g for name in cases.CASES if cases.differentiated(name) for key, g in gradients(name).items()}
    if "--check" not in sys.argv[1:]:
        np.savez_compressed(FILE, **arrays)
        return
    stored = np.load(FILE)
    largest = max(float(np.abs(stored[key] - g).max()) for key, g in arrays.items())
    print(f"largest difference from the stored values: {largest:.1e}")
    if set(stored) != set(arrays) or largest > 1e-5:
        raise SystemExit("failed")


if __name__ == "__main__":
    main()
