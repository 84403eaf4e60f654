"""The smallest gain first.

caught by: TestTask4Gains::test_the_best_first
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    worth = {name: step_s / (step_s - now + then) for name, (now, then) in parts.items()}
    return sorted(worth.items(), key=lambda item: item[1])
