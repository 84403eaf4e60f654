"""What every refusal must be: a UserError of one line that names what is wrong."""

import pytest

from tinymlx.errors import UserError


def fails(call, *words: str) -> str:
    """The call raises a UserError of one line that has the words in it."""
    with pytest.raises(UserError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line and line.isprintable(), line
    for word in words:
        assert word in line, line
    return line
