"""Keeps the improvements before it: each gain contains those above.

caught by: TestTask4Gains::test_each_alone
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    found, left = [], step_s
    for name, (now, then) in sorted(parts.items(), key=lambda item: item[1][1] - item[1][0]):
        left = left - now + then
        found.append((name, step_s / left))
    return sorted(found, key=lambda item: -item[1])
