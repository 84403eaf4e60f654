"""The two phases of an answer: prefill reads the prompt in chunks, decode makes one token after the other."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import mlx.core as mx

Draw = TypeVar("Draw")


def shared_prefix(prompt: Sequence[int], cached: Sequence[int]) -> int:
    """How many cached tokens serve this prompt: those in common, but never all of it, for the last one's logits are needed.

    >>> shared_prefix([5, 6, 7], [5, 6, 7, 8]), shared_prefix([5, 9, 7], [5, 6, 7])
    (2, 1)
    """
    common = 0
    while common < min(len(prompt) - 1, len(cached)) and prompt[common] == cached[common]:
        common += 1
    return common


def prefill(
    feed: Callable[[Sequence[int], bool], mx.array], prompt: Sequence[int], start: int, step_size: int
) -> mx.array:
    """Feed prompt[start:] in chunks of `step_size` tokens, the last of what is left, so that memory for activations stays bounded.

    >>> prefill(lambda chunk, last: print(chunk, last), [5, 6, 7, 8, 9], start=1, step_size=3)
    [6, 7, 8] False
    [9] True

    feed(chunk, last): runs the model over the next tokens and caches their K/V; logits are wanted of the last chunk alone. Returns what it
    gave for that: logits [1, V] after the prompt's last token. start: how many tokens are cached already, below len(prompt).
    """
    out = None
    for begin in range(start, len(prompt), step_size):
        chunk = prompt[begin : begin + step_size]
        out = feed(chunk, begin + len(chunk) == len(prompt))
    return out


def decode(advance: Callable[[Draw], Draw], draw: Draw, limit: int, ahead: Callable[[], bool]) -> Iterator[Draw]:
    """Hand out `draw` and those that follow it, `limit` in all (1 or more). Who finds an end token stops asking, and no more is computed.

    >>> list(decode(lambda draw: draw + 1, 10, 3, lambda: True))
    [10, 11, 12]

    advance(draw): feeds the drawn token to the model and draws the next, without waiting for either. ahead(): asked anew for each token,
    whether the next step may be enqueued before this token is handed out. Then the device never waits for whoever reads the tokens, and
    at most one step is computed in vain.
    """
    for remaining in range(limit - 1, -1, -1):
        upcoming = advance(draw) if remaining and ahead() else None
        yield draw
        if remaining:
            draw = advance(draw) if upcoming is None else upcoming
