"""What is said about an answer once it is there."""

from typing import Any


def timings(stats: Any) -> dict[str, float | int]:
    """The numbers of `--json`: seconds, tokens, tokens per second, bytes."""
    return {
        "prompt_tokens": stats.prompt_tokens,
        "cached_tokens": stats.num_cached_tokens,
        "prompt_s": round(stats.prompt_s, 4),
        "prompt_tokens_per_s": round(stats.prompt_tokens_per_s, 2),
        "time_to_first_token_s": round(stats.time_to_first_token_s, 4),
        "generated_tokens": stats.generated_tokens,
        "generation_s": round(stats.generation_s, 4),
        "generation_tokens_per_s": round(stats.generation_tokens_per_s, 2),
        "gb_per_s": round(stats.bytes_per_s / 1e9, 3),
        "peak_memory_bytes": stats.peak_memory_bytes,
    }


def at_most(stats: Any) -> str:
    """ " (at most 176.0)": tokens a second that the measured bandwidth allows over this answer's mean context; "" where nothing was measured."""
    from tinymlx.memory import sizes
    from tinymlx.memory.machine import measured_bandwidth

    gb_s = measured_bandwidth()
    return (
        f" (at most {sizes.most_tokens_per_s(stats.bytes_per_token, gb_s):.1f})"
        if gb_s and stats.bytes_per_token
        else ""
    )


def summary(stats: Any) -> str:
    """One line: `prompt 31 tokens 210 tok/s · answer 64 tokens 5.4 tok/s (at most 176.0) · 0.5 GB/s, 3 % of 17.3 measured · peak 0.61 GB`."""
    from tinymlx.memory.machine import measured_bandwidth

    bandwidth_gb_s = measured_bandwidth()
    computed = stats.prompt_tokens - stats.num_cached_tokens
    cached = f" (+{stats.num_cached_tokens} cached)" if stats.num_cached_tokens else ""
    parts = [
        f"prompt {computed} tokens{cached} {stats.prompt_tokens_per_s:.1f} tok/s",
        f"first token {stats.time_to_first_token_s:.2f} s",
        f"answer {stats.generated_tokens} tokens {stats.generation_tokens_per_s:.1f} tok/s{at_most(stats)}",
    ]
    rate = stats.bytes_per_s / 1e9
    if rate:
        share = f", {100 * rate / bandwidth_gb_s:.0f} % of {bandwidth_gb_s:.1f} measured" if bandwidth_gb_s else ""
        parts.append(f"{rate:.2f} GB/s of weights and K/V{share}")
    parts.append(f"peak {stats.peak_memory_bytes / 1e9:.2f} GB")
    return " · ".join(parts)


def kernels_served() -> list[str]:
    """A line for each operation: `norm_qkv: ours, 1.84 times as fast as MLX, error 0.31 of its bound; mlx (not tried yet)`."""
    from tinymlx.kernels import services

    lines: dict[str, list[str]] = {}
    for service in services():
        reason = f" ({service.why})" if service.why else ""
        tried = service.why is None and service.factor is not None
        trial = f", {service.factor:.2f} times as fast as MLX, error {service.error:.2f} of its bound" if tried else ""
        lines.setdefault(service.operation, []).append(service.route + reason + trial)
    return [f"{operation}: {'; '.join(served)}" for operation, served in lines.items()]
