"""Takes the sum of its operations for the step: the waiting between them vanishes, and gains look larger.

caught by: TestTask4Gains::test_the_step_is_what_was_measured
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    whole = sum(now for now, _ in parts.values())
    worth = {
        name: whole / (whole - now + then) if whole - now + then else float("inf")
        for name, (now, then) in parts.items()
    }
    return sorted(worth.items(), key=lambda item: -item[1])
