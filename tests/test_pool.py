"""The page pool against a plain dictionary of what was written."""

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tinymlx.cache import KVView, PagePool
from tinymlx.errors import UserError

pytestmark = pytest.mark.capability("paged K/V")

LAYERS, HEADS, DIM, PAGE = 2, 2, 4, 4


def fresh(batch, L, value):
    """K/V of one step in which every number tells its layer, kind, row and place."""
    base = (
        np.arange(LAYERS * 2 * batch * HEADS * L * DIM, dtype=np.float32).reshape(LAYERS, 2, batch, HEADS, L, DIM)
        + value
    )
    return base, [(mx.array(base[layer, 0]), mx.array(base[layer, 1])) for layer in range(LAYERS)]


def read(pool, table, position, layer, kind):
    page = table[position // pool.page_size] + (2 * layer + kind) * pool.num_pages
    return np.array(pool.array[page, :, position % pool.page_size])


def test_write_puts_every_token_in_its_slot_and_nothing_elsewhere():
    pool = PagePool(LAYERS, HEADS, DIM, 8, mx.float32, PAGE)
    tables = [pool.allocate(3), pool.allocate(2)]
    values, kv = fresh(2, 5, 1.0)
    pool.write(kv, tables, [6, 0], [5, 3])
    written = 0
    for layer in range(LAYERS):
        for kind in range(2):
            for row, (start, count) in enumerate([(6, 5), (0, 3)]):
                for i in range(count):
                    assert (read(pool, tables[row], start + i, layer, kind) == values[layer, kind, row, :, i]).all()
                    written += HEADS * DIM
    assert np.count_nonzero(np.array(pool.array)) == written


def test_views_address_the_layer_asked_for():
    pool = PagePool(LAYERS, HEADS, DIM, 8, mx.float32, PAGE)
    view = pool.view([[3, 1], [2]], [5, 2]).layers(2)[1]
    keys, values = view.pages()
    assert np.array(keys).tolist() == [[3 + 16, 1 + 16], [2 + 16, 16]]
    assert np.array(values).tolist() == [[3 + 24, 1 + 24], [2 + 24, 24]]
    assert pool.view([[3]], [1], width=4).block_table.shape == (1, 4)
    assert KVView.empty(3).is_empty and not view.is_empty and view.num_slots == 8


def test_layers_share_what_one_of_them_worked_out():
    calls = []
    for view in KVView.empty(1).layers(3):
        view.once("x", lambda: calls.append(1))
    KVView.empty(1).once("x", lambda: calls.append(2))
    assert calls == [1, 2]


def test_what_is_not_a_number_never_enters_a_page():
    pool = PagePool(LAYERS, HEADS, DIM, 2, mx.float32, PAGE)
    spoiled = [(mx.full((1, HEADS, 1, DIM), value),) * 2 for value in (mx.nan, -mx.inf)]
    pool.write(spoiled, [pool.allocate(1)], [0], [1])
    assert mx.all(pool.array == 0)


def test_too_many_pages_are_refused_and_none_is_taken():
    pool = PagePool(LAYERS, HEADS, DIM, 3, mx.float32, PAGE)
    with pytest.raises(UserError, match="3 free pages"):
        pool.allocate(4)
    assert pool.num_free == 3


class Pool(RuleBasedStateMachine):
    """Rows come, grow, shrink and go; the pool grows; a dictionary remembers what each row's tokens hold."""

    def __init__(self):
        super().__init__()
        self.pool = PagePool(LAYERS, HEADS, DIM, 4, mx.float32, PAGE)
        self.tables, self.contents, self.step = [], [], 0

    @rule(count=st.integers(1, 9), existing=st.booleans(), data=st.data())
    def append(self, count, existing, data):
        if not (existing and self.tables):
            self.tables.append([])
            self.contents.append([])
        row = data.draw(st.integers(0, len(self.tables) - 1))
        start = len(self.contents[row])
        needed = self.pool.pages_for(start + count) - len(self.tables[row])
        if needed > self.pool.num_free:
            return
        self.tables[row] += self.pool.allocate(needed)
        self.step += 1000
        values, kv = fresh(1, count, self.step)
        self.pool.write(kv, [self.tables[row]], [start], [count])
        self.contents[row] += [values[:, :, 0, :, i] for i in range(count)]

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def shorten(self, data):
        row = data.draw(st.integers(0, len(self.tables) - 1))
        keep = data.draw(st.integers(0, len(self.contents[row])))
        pages = self.pool.pages_for(keep)
        self.pool.free(self.tables[row][pages:])
        del self.tables[row][pages:], self.contents[row][keep:]

    @rule(extra=st.integers(0, 3))
    def grow(self, extra):
        if self.pool.num_pages < 20:
            self.pool.grow(self.pool.num_pages + extra)

    @invariant()
    def every_page_has_one_owner(self):
        owned = [page for table in self.tables for page in table] + self.pool._free
        assert sorted(owned) == list(range(self.pool.num_pages))

    @invariant()
    def every_token_reads_back(self):
        for table, contents in zip(self.tables, self.contents):
            if contents:
                position = len(contents) // 2
                for layer in range(LAYERS):
                    for kind in range(2):
                        assert (read(self.pool, table, position, layer, kind) == contents[position][layer, kind]).all()


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@given(tokens=st.integers(0, 100))
def test_pages_for(tokens):
    pool = PagePool(1, 1, 2, 1, mx.float32, PAGE)
    assert (pool.pages_for(tokens) - 1) * PAGE < max(tokens, 1) <= max(pool.pages_for(tokens), 1) * PAGE
