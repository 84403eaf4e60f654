"""Takes the operation out of the step and leaves its new time out as well.

caught by: TestTask4Gains::test_the_rest_stays
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    worth = {name: step_s / (step_s - now) if step_s > now else float("inf") for name, (now, _) in parts.items()}
    return sorted(worth.items(), key=lambda item: -item[1])
