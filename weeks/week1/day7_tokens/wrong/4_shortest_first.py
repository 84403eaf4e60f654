"""Tries the tokens in order of the alphabet: "<|end|>" stands before "<|end|>\\n" there, and wins though it is shorter.

caught by: TestTask4Special::test_the_longest_of_those_that_start_together
"""

import re
from collections.abc import Iterable


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    pattern = "|".join(map(re.escape, sorted(special))) or "(?!)"
    return [(part, i % 2 == 1) for i, part in enumerate(re.split(f"({pattern})", text)) if part]
