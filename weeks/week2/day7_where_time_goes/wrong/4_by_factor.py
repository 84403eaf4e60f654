"""Orders by the operation's own factor: the worst operation comes first, not the most worthwhile.

caught by: TestTask4Gains::test_the_best_first
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    order = sorted(parts, key=lambda name: parts[name][1] / parts[name][0])
    return [(name, step_s / (step_s - parts[name][0] + parts[name][1])) for name in order]
