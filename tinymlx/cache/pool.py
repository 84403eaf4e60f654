"""Keys and values of all layers in one pool of pages.

The pool is one array [layers * 2 * pages, G, page, D]; page p of layer l holds its keys at (2 l) * pages + p and its values at
(2 l + 1) * pages + p, so that no layer needs a view of its own: a view would keep MLX from writing in place. A step reads pages and gets its own new keys and values as inputs;
they are written afterwards, by one scatter, when no step reads the pool any more.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np

from tinymlx.errors import UserError


PAGE_SIZE = 16  # tokens


def page_slots(table: Sequence[int], start: int, count: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where a row's positions start, start + 1, ... lie: each one's page and its slot in that page, [count] each.

    >>> page_slots([7, 3], 1, 4, page_size=4)      # positions 1 to 4 of a row whose pages are 7 and 3
    (array([7, 7, 7, 3]), array([1, 2, 3, 0]))
    """
    positions = np.arange(start, start + count)
    return np.asarray(table, np.int64)[positions // page_size], positions % page_size


class KVView(NamedTuple):
    """What attention sees of the cache. Launch shapes depend on B and M alone; lengths are data.

    pool: [layers * 2 * pages, G, page, D]; block_table: [B, M] int32 page numbers; lengths: [B] int32 tokens in those pages; new_lengths: [B] int32 how
    many of a step's L tokens are real, or None when all are.
    """

    pool: mx.array | None
    block_table: mx.array
    lengths: mx.array
    num_pages: int
    new_lengths: mx.array | None = None
    layer: int = 0
    shared: dict[Hashable, Any] | None = None

    @classmethod
    def empty(cls, batch: int, new_lengths: mx.array | None = None) -> "KVView":
        """A view of nothing: every row starts at position 0."""
        return cls(None, mx.zeros((batch, 0), mx.int32), mx.zeros(batch, mx.int32), 0, new_lengths)

    def layers(self, count: int) -> list["KVView"]:
        """The view of each layer. They share what one of them has worked out by `once`."""
        shared: dict[Hashable, Any] = {}
        return [self._replace(layer=layer, shared=shared) for layer in range(count)]

    def once(self, key: Hashable, make: Callable[[], mx.array]) -> mx.array:
        """`make()`, computed by the first layer of a step that asks for `key`."""
        if self.shared is None:
            return make()
        if key not in self.shared:
            self.shared[key] = make()
        return self.shared[key]

    @property
    def is_empty(self) -> bool:
        return self.block_table.shape[1] == 0

    @property
    def num_slots(self) -> int:
        """Slots in a row's pages: M * page."""
        return 0 if self.is_empty else self.block_table.shape[1] * self.pool.shape[2]

    def pages(self) -> tuple[mx.array, mx.array]:
        """Ids into the pool of this layer's pages of keys and of values, each [B, M]."""
        slices = self.pool.shape[0] // self.num_pages
        ids = self.once(
            "pages", lambda: self.block_table + mx.arange(0, slices * self.num_pages, self.num_pages)[:, None, None]
        )
        return ids[2 * self.layer], ids[2 * self.layer + 1]


class PagePool:
    """The pool's array and the list of its free pages."""

    def __init__(
        self, num_layers: int, kv_heads: int, head_dim: int, num_pages: int, dtype: mx.Dtype, page_size: int = PAGE_SIZE
    ):
        self.num_layers, self.num_pages, self.page_size = num_layers, num_pages, page_size
        self.array = mx.zeros((num_layers * 2 * num_pages, kv_heads, page_size, head_dim), dtype)
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def pages_for(self, num_tokens: int) -> int:
        """How many pages hold `num_tokens`: 0 -> 0, 1 -> 1, 16 -> 1, 17 -> 2 at page size 16."""
        return -(-num_tokens // self.page_size)

    def allocate(self, count: int) -> list[int]:
        """Take `count` free pages. Raises UserError, taking none, when there are fewer."""
        if count > len(self._free):
            raise UserError(
                f"the K/V pool has {len(self._free)} free pages and {count} are needed; shorten the context"
            )
        return [self._free.pop() for _ in range(count)]

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back. What they hold stays until it is overwritten."""
        self._free.extend(reversed(pages))

    def grow(self, num_pages: int) -> None:
        """Make room for `num_pages` in all; page numbers and contents stay. Copies the pool once."""
        extra = num_pages - self.num_pages
        if extra <= 0:
            return
        layered = self.array.reshape(self.num_layers * 2, self.num_pages, *self.array.shape[1:])
        padding = mx.zeros((self.num_layers * 2, extra, *self.array.shape[1:]), self.array.dtype)
        self.array = mx.concatenate([layered, padding], axis=1).reshape(-1, *self.array.shape[1:])
        mx.eval(self.array)
        self._free = list(range(num_pages - 1, self.num_pages - 1, -1)) + self._free
        self.num_pages = num_pages

    def view(self, block_tables: Sequence[Sequence[int]], lengths: Sequence[int], width: int | None = None) -> KVView:
        """What a step over these rows sees. Tables are padded with page 0 to `width` pages (default: the longest)."""
        width = max((len(t) for t in block_tables), default=0) if width is None else width
        table = np.zeros((len(block_tables), width), np.int32)
        for row, pages in enumerate(block_tables):
            table[row, : len(pages)] = pages
        return KVView(self.array, mx.array(table), mx.array(np.asarray(lengths, np.int32)), self.num_pages)

    def write(
        self,
        fresh: Sequence[tuple[mx.array, mx.array]],
        block_tables: Sequence[Sequence[int]],
        starts: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        """Store a step's new keys and values: the first counts[b] of its L tokens go to row b's positions starts[b] and on.

        fresh: (k, v) of every layer, each [B, G, L, D]. One scatter for all layers. In place if nothing else holds the pool's array. NaN
        and infinity become 0: a page outlives its request, and 0 * NaN in a slot that the next one may not see would be NaN.
        """
        pages, offsets, rows = [], [], []
        L = fresh[0][0].shape[2]
        for row, (table, start, count) in enumerate(zip(block_tables, starts, counts)):
            page, offset = page_slots(table, start, count, self.page_size)
            pages.append(page)
            offsets.append(offset)
            rows.append(row * L + np.arange(count))
        pages, offsets, rows = np.concatenate(pages), np.concatenate(offsets), np.concatenate(rows)
        if len(rows) == 0:
            return
        slices = 2 * self.num_layers
        ids = (np.arange(slices)[:, None] * self.num_pages + pages).reshape(-1)
        kv = mx.stack([a for pair in fresh for a in pair])  # [slices, B, G, L, D]
        _, B, G, _, D = kv.shape
        kv = kv.transpose(0, 1, 3, 2, 4).reshape(slices, B * L, G, D)
        if len(rows) < B * L:
            kv = kv[:, mx.array(rows)]
        kv = mx.where(mx.isfinite(kv), kv, 0).reshape(-1, G, D).astype(self.array.dtype)
        self.array[mx.array(ids), :, mx.array(np.tile(offsets, slices))] = kv
