"""Memory bandwidth that chip makers publish, GB/s (10^9 bytes a second).

Sources: Apple's newsroom posts and technical specifications, one for each chip generation, as also tabulated by Ars
Technica ("Apple's M4, M4 Pro, and M4 Max compared to past generations", November 2024), by the "Physical limit" table
in ggml-org/llama.cpp pull request 1642 (M1 and M2) and, for M5 Pro and M5 Max (March 2026), by lowyat.net/2026/385170.
NVIDIA's from its data sheets. Makers round: an M3 Pro is sold as 150 and computes to 153.6. None of these was measured
by us but the H200, where a plain copy moves 4,300.
"""

import re

_APPLE = {
    "M1": 68, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800,
    "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800,
    "M3": 100, "M3 Pro": 150, "M3 Max": 400, "M3 Ultra": 819,
    "M4": 120, "M4 Pro": 273, "M4 Max": 546,
    "M5": 153, "M5 Pro": 307, "M5 Max": 614,
}  # fmt: skip

# Chips sold under one name with fewer GPU cores also have fewer memory channels: (GPU cores of the full chip, GB/s of
# the smaller one).
_APPLE_CUT = {"M3 Max": (40, 300), "M4 Max": (40, 410), "M5 Max": (40, 460)}

# The first pattern that is found in the device's name wins, so the longer name of a pair stands first.
_NVIDIA = (
    ("B200", 8000),
    ("H200", 4800),
    ("H100 NVL", 3900),
    ("H100 PCIe", 2000),
    ("H100", 3350),
    ("A100 80GB PCIe", 1935),
    ("A100-SXM4-80GB", 2039),
    ("A100-SXM4-40GB", 1555),
    ("L40S", 864),
    ("L4", 300),
    ("RTX 5090", 1792),
    ("RTX 4090", 1008),
    ("RTX 3090 Ti", 1008),
    ("RTX 3090", 936),
)


def apple_bandwidth(chip: str, gpu_cores: int | None = None) -> float | None:
    """GB/s of an Apple chip, None for one that is not in the table.

    >>> apple_bandwidth("Apple M4 Max", 40), apple_bandwidth("Apple M4 Max", 32), apple_bandwidth("Apple M4 Max")
    (546.0, 410.0, 410.0)

    Where two versions share a name and `gpu_cores` is unknown, the slower one is given: a prediction had better be too
    low.
    """
    name = chip.removeprefix("Apple ").strip()
    if name not in _APPLE:
        return None
    if name in _APPLE_CUT:
        full_cores, cut = _APPLE_CUT[name]
        if gpu_cores is None or gpu_cores < full_cores:
            return float(cut)
    return float(_APPLE[name])


def nvidia_bandwidth(gpu: str) -> float | None:
    """GB/s of an NVIDIA card by the name its driver gives, None for one that is not in the table.

    >>> nvidia_bandwidth("NVIDIA H200"), nvidia_bandwidth("NVIDIA GeForce RTX 4090 Laptop GPU")
    (4800.0, None)

    A slice of a card (MIG) and a laptop's namesake have less than the card, and how much the name does not say.
    """
    if "MIG" in gpu or "Laptop" in gpu:
        return None
    for pattern, gb_s in _NVIDIA:
        if re.search(rf"(?<!\w){re.escape(pattern)}(?!\w)", gpu):
            return float(gb_s)
    return None


def published_bandwidth(chip: str, gpu: str | None, gpu_cores: int | None) -> float | None:
    """GB/s of the memory that the model would be read from: the card's if there is one, else the Apple chip's, else
    None.
    """
    return nvidia_bandwidth(gpu) if gpu and "NVIDIA" in gpu else apple_bandwidth(chip, gpu_cores)
