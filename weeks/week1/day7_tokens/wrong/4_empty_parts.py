"""Keeps what re.split leaves between two tokens side by side: the empty text.

caught by: TestTask4Special::test_no_part_is_empty
"""

import re
from collections.abc import Iterable


def split_special(text: str, special: Iterable[str]) -> list[tuple[str, bool]]:
    pattern = "|".join(map(re.escape, sorted(special, key=len, reverse=True))) or "(?!)"
    return [(part, i % 2 == 1) for i, part in enumerate(re.split(f"({pattern})", text))]
