"""One run of the model, compiled where that pays."""

from typing import Any

import mlx.core as mx

from tinymlx import kernels
from tinymlx.cache import KVView
from tinymlx.models.qwen3 import Qwen3


class Stepper:
    """Runs the model over a view of the cache. On a GPU steps of few tokens are compiled, which removes most of Python's share.

    A compiled step takes weights and cache as inputs, and MLX ignores functions replaced after tracing: one is kept for each combination of routes and grafts.
    """

    COMPILED_TOKENS = 16  # a longer chunk's Python is small beside its work, and every length would be traced anew

    def __init__(self, model: Qwen3):
        self.model = model
        self._compiled: dict[tuple, Any] = {}
        self.on_gpu = mx.default_device() == mx.gpu

    def table_width(self, pages: int) -> int:
        """Pages in a step's block table: exact on a CPU; on a GPU rounded up, by 7 or a quarter at most, so that few shapes are traced."""
        if not self.on_gpu or pages == 0:
            return pages
        unit = max(8, 1 << max(pages.bit_length() - 3, 0))
        return -(-pages // unit) * unit

    def __call__(self, tokens: mx.array, kv: KVView, logits: bool) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        """tokens: [B, L]. Returns logits [B, V] after the last token, or its hidden state [B, 1, K], and the new K/V of every layer."""
        if not self.on_gpu or tokens.shape[1] > self.COMPILED_TOKENS or kv.is_empty or not kernels.traceable():
            return self.run(self.model, tokens, kv, logits)
        key = (kernels.compile_key(), kv.num_pages, logits, kv.new_lengths is None)
        if key not in self._compiled:
            self._compiled[key] = mx.compile(self._traced(kv.num_pages, logits))
        return self._compiled[key](
            self.model.weights, self._lora_arrays(), tokens, kv.pool, kv.block_table, kv.lengths, kv.new_lengths
        )

    def _lora_arrays(self) -> dict[str, tuple]:
        return {name: (lora.a, lora.b, lora.column_scale) for name, lora in self.model.loras.items()}

    def _traced(self, num_pages: int, logits: bool):
        scales = {name: lora.scale for name, lora in self.model.loras.items()}

        def step(weights, loras, tokens, pool, block_table, lengths, new_lengths):
            named = {
                name: type(self.model.loras[name])(a, b, scales[name], column) for name, (a, b, column) in loras.items()
            }
            model = Qwen3(self.model.config, weights, self.model.quantization, named)
            return self.run(model, tokens, KVView(pool, block_table, lengths, num_pages, new_lengths), logits)

        return step

    @staticmethod
    def run(
        model: Qwen3, tokens: mx.array, kv: KVView, logits: bool
    ) -> tuple[mx.array, list[tuple[mx.array, mx.array]]]:
        hidden, fresh = model(tokens, kv)
        last = hidden[:, -1:]
        return (model.head(last)[:, 0] if logits else last), fresh
