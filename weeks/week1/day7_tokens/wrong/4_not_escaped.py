"""Puts the tokens into a pattern as they are: "|" is "or" there, so that "end" alone becomes special.

caught by: TestTask4Special::test_characters_that_mean_something_in_patterns
"""

import re
from collections.abc import Iterable


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    special = set(special)
    pattern = "|".join(sorted(special, key=len, reverse=True)) or "(?!)"
    return [(part, i % 2 == 1) for i, part in enumerate(re.split(f"({pattern})", text)) if part]
