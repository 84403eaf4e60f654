"""How many times faster the operation gets: the rest of the step is forgotten.

caught by: TestTask4Gains::test_the_rest_stays
"""

from collections.abc import Mapping


def gains(step_s: float, parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    worth = {name: now / then if then else float("inf") for name, (now, then) in parts.items()}
    return sorted(worth.items(), key=lambda item: -item[1])
