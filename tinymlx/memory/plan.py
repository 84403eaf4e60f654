"""How much memory a model will take, predicted from its shape before anything is read, and held against what the
machine can give.

    peak = weights + K/V of the whole context + temporaries of one prefill chunk

Weights are what `tinymlx.models` will hold (a CPU keeps unquantised ones and scales in float32), not the size of the
files.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tinymlx.errors import UserError
from tinymlx.memory.machine import Machine

PAGE = 16  # tokens; cache/pool.py
FIRST_POOL_TOKENS = 1024  # engine/generate.py: a conversation's pool begins with these and doubles
TOO_SHORT = 256  # tokens: a context below this is no use, and counts as not fitting
SPARE_CACHE = 256 * 2**20  # bytes of freed buffers that MLX may keep for reuse beyond the plan, where there is room


@dataclass(frozen=True)
class Temporaries:
    """How many copies of a chunk's arrays MLX holds at once. It enqueues a layer's operations ahead, so these are more
    than algebra needs.

    Those of the CPU are fitted to mx.get_peak_memory over random models of 2 to 28 layers, MLX 0.32.4;
    tests/test_memory.py runs some again. Those of Metal and CUDA are not fitted: the CPU's with a margin, as if
    attention were not fused.
    """

    scores: float
    """Of the attention matrix [heads, chunk, context] in float32."""
    gathered: float
    """Of one layer's keys and values over the whole context, laid side by side."""
    projections: float
    """Of q, k and v of the chunk."""
    mlp: float
    """Of the chunk's [chunk, intermediate]."""
    unpacked: float
    """Of one [hidden, intermediate] weight in float32 where a quantised weight is unpacked before a long matmul; 0
    where it is not.
    """
    fresh: float = 4.0
    """Of the chunk's new K/V of all layers, while they are stacked, transposed and written to the pool."""
    workspace: int = 0
    """Bytes that the back end's libraries take whatever the model (on an H200 6 to 13 MB beyond the plan of tiny models)."""


TEMPORARIES = {
    "cpu": Temporaries(scores=1.0, gathered=2.0, projections=6.5, mlp=8.5, unpacked=6.0),
    "metal": Temporaries(scores=1.0, gathered=3.0, projections=8.0, mlp=8.5, unpacked=0.0),
    "cuda": Temporaries(scores=1.0, gathered=3.0, projections=8.0, mlp=8.5, unpacked=1.0, workspace=16 * 2**20),
}


@dataclass(frozen=True)
class Plan:
    """Predicted bytes. `request` is what `plan` was asked, so that another context can be tried."""

    weight_bytes: int
    kv_bytes: int
    temporary_bytes: int
    context: int
    batch: int
    request: Mapping[str, Any] = field(repr=False)

    @property
    def total_bytes(self) -> int:
        """The peak."""
        return self.weight_bytes + self.kv_bytes + self.temporary_bytes

    def __str__(self) -> str:
        return (
            f"{gigabytes(self.weight_bytes)} of weights + {gigabytes(self.kv_bytes)} of cache for {self.context} tokens"
            f" + {gigabytes(self.temporary_bytes)} of temporaries"
        )


def plan(
    *,
    weight_bytes: int,
    num_layers: int,
    kv_heads: int,
    head_dim: int,
    hidden_size: int,
    intermediate_size: int,
    vocab_size: int,
    kv_dtype_bytes: int,
    activation_dtype_bytes: int,
    context: int,
    batch: int = 1,
    prefill_step_size: int = 512,
    num_heads: int | None = None,
    quantized: bool = True,
    backend: str = "cpu",
    growing: bool = True,
) -> Plan:
    """Predict the peak of `batch` requests of `context` tokens each, prompt and answer together.

    Qwen3-4B's cache in bfloat16 is 2 * 36 layers * 8 heads * 128 * 2 bytes = 144 KiB a token, rounded up to pages of
    16 tokens.

    num_heads: query heads, default hidden_size / head_dim. intermediate_size: of a mixture of experts, the chosen
    experts' together. quantized: whether weights are packed. backend: "cpu", "metal" or "cuda". growing: whether the
    pool starts small and is copied into one twice its size whenever it is full (PagePool.grow), which for a moment
    holds the cache twice.
    """
    request = {name: value for name, value in locals().items() if name != "context"}
    held = TEMPORARIES[backend]
    num_heads = num_heads or max(kv_heads, hidden_size // head_dim)
    chunk = min(prefill_step_size, context)
    tokens, slots = batch * chunk, -(-context // PAGE) * PAGE

    kv_token = 2 * kv_heads * head_dim * kv_dtype_bytes  # of one layer
    kv_bytes = batch * slots * num_layers * kv_token
    fresh = tokens * num_layers * kv_token

    attention = held.scores * batch * num_heads * chunk * slots * 4
    attention += held.gathered * batch * slots * kv_token
    attention += held.projections * tokens * (num_heads + 2 * kv_heads) * head_dim * activation_dtype_bytes
    mlp = held.mlp * tokens * intermediate_size * activation_dtype_bytes
    if quantized:
        unpacked = held.unpacked * hidden_size * intermediate_size * (4 if backend == "cpu" else activation_dtype_bytes)
        mlp = max(mlp, unpacked + mlp / 4)
    hidden = 2 * tokens * hidden_size * activation_dtype_bytes
    logits = 8 * batch * vocab_size * 4  # and what sampling makes of them: sorted, filtered, exponentiated

    forward = fresh + hidden + max(attention, mlp)
    growth = kv_bytes + fresh if growing and slots > FIRST_POOL_TOKENS else 0
    temporary = int(max(forward, held.fresh * fresh, growth)) + logits + held.workspace
    return Plan(weight_bytes, kv_bytes, temporary, context, batch, request)


def limit_bytes(machine: Machine) -> int:
    """Bytes that a model may take on this machine.

    Metal: what the system lets the GPU keep resident (max_recommended_working_set_size); beyond it macOS swaps or
    kills. CUDA: the card's free memory, less a twentieth for cuBLAS and fragments. CPU: available memory, less a
    twentieth for everybody else.
    """
    device = machine.device
    if machine.backend == "metal" or (machine.backend is None and machine.system == "Darwin"):
        return int(device.get("max_recommended_working_set_size") or machine.total_memory * 2 // 3)
    if machine.backend == "cuda":
        total = device.get("total_memory") or device.get("memory_size") or machine.available_memory
        return int(device.get("free_memory") or total) * 19 // 20
    return machine.available_memory * 19 // 20


def max_context(limit: int, *, most: int, **request: Any) -> int:
    """The longest context, at most `most` tokens and a multiple of a page unless it is `most`, whose plan fits in
    `limit`; 0 if none.

    request: arguments of `plan` without context.
    """
    low, high = 0, -(-most // PAGE)  # pages: low fits, everything above high does not
    while low < high:
        middle = (low + high + 1) // 2
        if plan(context=min(middle * PAGE, most), **request).total_bytes <= limit:
            low = middle
        else:
            high = middle - 1
    return min(low * PAGE, most)


def check(wanted: Plan, limit: int) -> None:
    """Raises UserError with the numbers and what to try if `wanted` does not fit in `limit` bytes."""
    if wanted.total_bytes <= limit:
        return
    fitting = max_context(limit, most=wanted.context, **wanted.request)
    if wanted.weight_bytes > limit:
        raise UserError(
            f"{gigabytes(wanted.weight_bytes)} of weights alone exceed the {gigabytes(limit)} limit of this machine; "
            "try fewer bits a weight or a smaller model (`tinymlx doctor` lists those that fit)"
        )
    if fitting < min(TOO_SHORT, wanted.context):
        act = "try fewer bits a weight or a smaller model (`tinymlx doctor` lists those that fit)"
    else:
        act = f"try --max-kv-size {fitting}"
    raise UserError(f"{wanted} exceed the {gigabytes(limit)} limit of this machine; {act}")


def fit(limit: int, *, most: int, wanted: int | None = None, **request: Any) -> Plan:
    """The plan for `wanted` tokens of context, or for as many as fit if that is None. Raises UserError like `check`.

    most: what the model was made for (max_position_embeddings).
    """
    context = min(wanted, most) if wanted else max(max_context(limit, most=most, **request), min(TOO_SHORT, most))
    chosen = plan(context=context, **request)
    check(chosen, limit)
    return chosen


def apply_limits(chosen: Plan, machine: Machine, mx: Any = None) -> dict[str, int]:
    """Tell MLX what the plan allows. Returns what was set: "wired_limit" (Metal only) and "cache_limit", bytes.

    Wired memory is not swapped out between two answers. Asking for more than the system's own limit raises, so never
    more than that. Freed buffers kept for reuse are those of the plan's temporaries, and a little more where there is
    room. `mx`: mlx.core, or a stand-in for it.
    """
    if mx is None:
        import mlx.core as mx

    limit = limit_bytes(machine)
    applied = {"cache_limit": chosen.temporary_bytes + max(0, min(SPARE_CACHE, limit - chosen.total_bytes))}
    mx.set_cache_limit(applied["cache_limit"])
    if machine.backend == "metal":
        applied["wired_limit"] = min(chosen.total_bytes, limit)
        mx.set_wired_limit(applied["wired_limit"])
    return applied


@dataclass
class Peak:
    nbytes: int = 0


@contextlib.contextmanager
def measured_peak() -> Iterator[Peak]:
    """The peak of MLX's memory within the block, to hold a plan against:

    >>> with measured_peak() as peak:
    ...     answer(prompt)
    >>> chosen.total_bytes / peak.nbytes
    1.04
    """
    import mlx.core as mx

    peak = Peak()
    mx.clear_cache()
    mx.reset_peak_memory()
    try:
        yield peak
    finally:
        peak.nbytes = mx.get_peak_memory()


def gigabytes(nbytes: float) -> str:
    """8_200_000_000 -> "8.2 GB", 40_000_000 -> "0.04 GB"."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e8 else f"{nbytes / 1e9:.2f} GB"
